// SPDX-License-Identifier: Apache-2.0
// Device implementation of redundancy: each block looks for the newest similar entries of some of a lane's keys, tile
// by tile from the newest keys on.
#pragma once

#include <kvpolicy/ops/cuda/attention/fma.hpp>
#include <kvpolicy/ops/cuda/run/entries_of.hpp>
#include <kvpolicy/ops/redundancy.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// A cosine as a whole number, so that a sum does not depend on the order in which blocks add to it.
struct whole_cosine {
  static constexpr double one = 1099511627776.0;  ///< 2^40: the sum of 2^22 cosines fits
  [[nodiscard]] KVPOLICY_HD static std::uint64_t of(float cosine) {
    return cosine == cosine ? static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<double>(cosine) * one))
                            : 0;
  }
  [[nodiscard]] KVPOLICY_HD static double back(std::uint64_t sum) {
    return static_cast<double>(static_cast<std::int64_t>(sum)) / one;
  }
};

struct clear_sums {
  std::uint64_t* sums;
  int bound;
  KVPOLICY_HD void operator()(int segment, ordinal_range of, int first, int step) const {
    for (int e = of.begin + first; e < of.end; e += step) sums[std::int64_t{segment} * bound + e] = 0;
  }
};

/// Takes from each entry's mean what it leaves out: itself, and the pairs whose sum is given.
struct take_out_sums {
  score_view out;
  by_lane<float> inverse_norms;
  std::uint64_t const* sums;  ///< null: none
  KVPOLICY_HD void operator()(int segment, ordinal_range of, int first, int step) const {
    lane const one = out.lane_of(segment);
    float const* const inverse = inverse_norms.row(one);
    for (int e = of.begin + first; e < of.end; e += step) {
      double sum = inverse[e] == 0 ? 0 : 1;
      if (sums != nullptr) sum += whole_cosine::back(sums[std::int64_t{segment} * out.lanes.capacity + e]);
      out.row(segment)[e] -= static_cast<float>(sum / out.lanes.committed(one));
    }
  }
};

/// One block for each `tile_rows` keys of a lane.
struct newest_similar_kernel {
  attention_task task;
  by_lane<float> inverse_norms;
  float threshold;
  fma_product product;
  std::uint64_t* sums;
  int blocks_of_lane;

  [[nodiscard]] static std::size_t shared(fma_product const& product) {
    return sizeof(attention_storage) + shared_arena::bytes_of_piece<float>(tile_rows) + product.bytes();
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index() / blocks_of_lane;
    lane const one = task.scores.lane_of(segment);
    int const entries = task.scores.lanes.committed(one);
    int const first = block.index() % blocks_of_lane * tile_rows;
    if (first >= entries) return;
    int const count = entries - first < tile_rows ? entries - first : tile_rows;
    shared_arena arena(block);
    lane_tile const of{{{}, task, one}, *arena.take<attention_storage>(1)};
    attention_storage& storage = of.tile;
    auto* const left = arena.take<float>(tile_rows);  // 1 / norm of a row that still searches; 0: it does not
    for (int i = block.thread(); i < tile_rows; i += block.threads()) {
      storage.query[i] = i < count ? task.from.row(one, first + i) : nullptr;
      left[i] = i < count ? inverse_norms.row(one)[first + i] : 0;
      if (i < count && task.scaled()) left[i] *= task.from.scale(one, first + i);
    }
    for (int e = (entries - 1) / tile_entries * tile_entries; e >= 0; e -= tile_entries) {
      block.sync();
      if (!any_searches(left)) return;
      storage.take_entries(block, of, e, entries);
      product.run(block, of, arena, 0, count);
      block.sync();
      search(block, storage, one, e, entries, first, count, left,
             sums + std::int64_t{segment} * task.scores.lanes.capacity);
    }
  }

 private:
  [[nodiscard]] KVPOLICY_HD static bool any_searches(float const* left) {
    bool any = false;
    for (int i = 0; i < tile_rows; ++i) any = any || left[i] != 0;
    return any;
  }
  /// One warp for each row: where the tile has a similar entry, the row adds its cosine to the newest one, and ends.
  template <class Block>
  KVPOLICY_HD void search(Block& block, attention_storage const& storage, lane one, int begin, int end, int first,
                          int count, float* left, std::uint64_t* to) const {
    float const* const inverse = inverse_norms.row(one) + begin;
    for (int r = warp_id(block); r < count; r += block.threads() / warp_size) {
      float const mine = left[r];
      if (mine == 0) continue;
      float const* const dot = storage.logits + r * tile_pitch;
      int newest = -1;
      for (int k = lane_id(block); k < tile_entries && begin + k < end; k += warp_size) {
        if (begin + k != first + r && dot[k] * mine * inverse[k] > threshold) newest = k;
      }
      newest = block.reduce_warp(newest, max_op{});
      // All threads of the warp have read left[r] before one of them ends the row.
      block.sync_warp();
      if (newest < 0 && begin > 0) continue;  // the oldest entry stands in where none is similar
      int const at = newest < 0 ? 0 : newest;
      if (lane_id(block) != 0) continue;
      if (begin + at != first + r) block.atomic_add(to + begin + at, whole_cosine::of(dot[at] * mine * inverse[at]));
      left[r] = 0;
    }
  }
};

}  // namespace detail

/// Takes three launches with `spare_newest`, else one.
template <kernel_backend Backend>
struct implementation<ops::redundancy_t, Backend> {
  static std::size_t scratch(shape const&, lanes const& batch) { return bytes(batch); }

  template <class Executor>
  static void run(Executor& exec, keys const& from, by_lane<float> const& inverse_norms, redundancy_options const& how,
                  score_view const& out) {
    if (!how.spare_newest) return detail::launch_entries(exec, out, detail::take_out_sums{out, inverse_norms, nullptr});
    detail::check_aligned("redundancy", "keys", from.rows);
    detail::check_scratch("redundancy", exec, bytes(out.lanes));
    auto* const sums = reinterpret_cast<std::uint64_t*>(exec.scratch());
    detail::launch_entries(exec, out, detail::clear_sums{sums, out.lanes.capacity});
    detail::float4_reader const reader = detail::reader_of(from.rows);
    detail::attention_task task;
    task.from = from;
    task.scores = out;
    detail::fma_product const product{reader, reader, task.scaled()};
    int const blocks = (out.lanes.capacity + detail::tile_rows - 1) / detail::tile_rows;
    exec.launch(launch_shape{out.segments() * blocks, detail::at_most<detail::tile_entries>(exec.threads().entry),
                             detail::newest_similar_kernel::shared(product)},
                detail::newest_similar_kernel{task, inverse_norms, how.threshold, product, sums, blocks});
    detail::launch_entries(exec, out, detail::take_out_sums{out, inverse_norms, sums});
  }

 private:
  static std::size_t bytes(lanes const& batch) {
    return static_cast<std::size_t>(batch.size()) * static_cast<std::size_t>(batch.capacity) * sizeof(std::uint64_t);
  }
};

}  // namespace KVPOLICY_NAMESPACE
