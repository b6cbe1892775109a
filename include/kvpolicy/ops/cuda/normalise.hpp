// SPDX-License-Identifier: Apache-2.0
// Device implementation of normalise: one warp for each block of entries, so that sums have the same bits in every
// launch, and for ranks one block of threads.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/normalise.hpp>
#include <kvpolicy/ops/radix_key.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The scores of one block of entries. Block i of a launch has block i % most of segment i / most.
struct block_of_scores {
  float* row;
  int count;

  KVPOLICY_HD block_of_scores(score_view const& scores, normalised_blocks const& blocks, int most, int index) {
    int const segment = index / most;
    int const entries = scores.lanes.committed(scores.lane_of(segment));
    std::int64_t const begin = blocks.begin + std::int64_t{index % most} * blocks.size;
    std::int64_t const left = entries - begin;
    row = scores.row(segment) + begin;
    count = left <= 0 ? 0 : blocks.size == 0 || left < blocks.size ? static_cast<int>(left) : blocks.size;
  }
};

struct normalise_kernel {
  normalising how;
  score_view scores;
  normalised_blocks blocks;
  int most;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    score_range all;
    each(block, [&](float score) { all.add(score); });
    all = {block.reduce_warp(all.sum, plus_op{}), block.reduce_warp(all.low, min_op{}),
           block.reduce_warp(all.high, max_op{}), block.reduce_warp(all.count, plus_op{})};
    double seconds = 0;
    if (how == normalising::z || how == normalising::softmax) {
      each(block, [&](float score) { seconds += all.second(how, score); });
    }
    float const by = all.divisor(how, block.reduce_warp(seconds, plus_op{}), blocks.less);
    each(block, [&](float& score) { score = all.normalised(how, score, by); });
  }

 private:
  /// Visits this thread's scores: those of a block of entries, or of all lanes of a layer.
  template <class Block, class Visit>
  KVPOLICY_HD void each(Block& block, Visit const& visit) const {
    int const lanes = blocks.of_layer ? scores.lanes.heads : 1;
    for (int i = block.index() * lanes; i < (block.index() + 1) * lanes; ++i) {  // of a layer there is one block
      block_of_scores const of(scores, blocks, most, i);
      for (int e = block.thread(); e < of.count; e += warp_size) visit(of.row[e]);
    }
  }
};

/// Compares each score with all others of its block, of which shared memory has the keys.
struct rank_kernel {
  score_view scores;
  normalised_blocks blocks;
  int most;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    block_of_scores const of(scores, blocks, most, block.index());
    shared_arena arena(block);
    auto* const keys = arena.take<std::uint32_t>(blocks.size);
    for (int e = block.thread(); e < of.count; e += block.threads()) {
      keys[e] = score_range::takes_part(of.row[e]) ? radix_key(of.row[e]) : below_all_keys;
    }
    block.sync();
    for (int e = block.thread(); e < of.count; e += block.threads()) {
      std::uint32_t const mine = keys[e];
      if (mine == below_all_keys || mine == nan_key) continue;
      int ranked = 0, worse = 0;
      for (int i = 0; i < of.count; ++i) {
        std::uint32_t const other = keys[i];
        ranked += other != below_all_keys ? 1 : 0;
        worse += other != below_all_keys && (other < mine || (other == mine && i > e)) ? 1 : 0;
      }
      of.row[e] = static_cast<float>(worse) / static_cast<float>(ranked);
    }
  }
};

}  // namespace detail

/// Takes one launch.
template <kernel_backend Backend>
struct implementation<ops::normalise_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, normalising how, score_view const& scores, normalised_blocks const& blocks) {
    int const most = blocks.count(scores.lanes.capacity);
    if (most == 0) return;
    int const launched = scores.segments() * most / (blocks.of_layer ? scores.lanes.heads : 1);
    if (how == normalising::rank) {
      exec.launch(launch_shape{launched, exec.threads().entry,
                               detail::shared_arena::bytes_of_piece<std::uint32_t>(blocks.size)},
                  detail::rank_kernel{scores, blocks, most});
    } else {
      exec.launch(launch_shape{launched, detail::at_most<detail::warp_size>(exec.threads().entry), 0},
                  detail::normalise_kernel{how, scores, blocks, most});
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
