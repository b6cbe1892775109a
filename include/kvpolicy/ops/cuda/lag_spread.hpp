// SPDX-License-Identifier: Apache-2.0
// Device implementation of lag_spread: one block of threads for each block of entries.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/moves/row_numbers.hpp>
#include <kvpolicy/ops/cuda/page_bounds.hpp>
#include <kvpolicy/ops/cuda/run/entries_of.hpp>
#include <kvpolicy/ops/lag_spread.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Block i of a launch has block i % most of segment i / most.
template <class Combine>
struct lag_spread_kernel {
  row_view rows;
  lagged_blocks blocks;
  Combine combine;
  score_view out;
  int most;

  [[nodiscard]] std::size_t shared() const {
    return 2 * shared_arena::bytes_of_piece<std::int32_t>(rows.rows.channels) +
           shared_arena::bytes_of_piece<float>(blocks.lag) + shared_arena::bytes_of_piece<float>(1);
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index() / most;
    int const which = block.index() % most;
    lane const one = out.lane_of(segment);
    if (which >= blocks.scored(out.lanes.committed(one))) return;
    int const begin = blocks.first + which * blocks.lag;
    shared_arena arena(block);
    auto* const high = arena.take<std::int32_t>(rows.rows.channels);
    auto* const low = arena.take<std::int32_t>(rows.rows.channels);
    auto* const spread = arena.take<float>(blocks.lag);
    auto* const sum = arena.take<float>(1);
    bound(block, one, begin + blocks.lag, high, low);
    for (int d = block.thread(); d < rows.rows.channels; d += block.threads()) {
      float const least = ordered_bits{}.back(low[d]);
      high[d] = same_bits<std::int32_t>(inverse_range(ordered_bits{}.back(high[d]), least));
      low[d] = same_bits<std::int32_t>(least);
    }
    block.sync();
    int const warps = block.threads() / warp_size;
    for (int e = warp_id(block); e < blocks.lag; e += warps) {
      float const made = spread_of(block, one, begin + e, high, low);
      if (lane_id(block) == 0) spread[e] = made;
    }
    block.sync();
    if (warp_id(block) == 0) add_powers(block, spread, sum);
    block.sync();
    float* const row = out.row(segment) + begin;
    for (int e = block.thread(); e < blocks.lag; e += block.threads()) row[e] = combine(row[e], spread[e] / *sum);
  }

 private:
  [[nodiscard]] KVPOLICY_HD float number(lane one, int e, int d) const {
    return number_at(rows, one, e, d) * rows.scale(one, e);
  }

  /// The bounds of entries [begin, begin + lag): each warp finds those of some of them.
  template <class Block>
  KVPOLICY_HD void bound(Block& block, lane one, int begin, std::int32_t* high, std::int32_t* low) const {
    for (int d = block.thread(); d < rows.rows.channels; d += block.threads()) {
      high[d] = -0x7FFFFFFF - 1;
      low[d] = 0x7FFFFFFF;
    }
    block.sync();
    int const warps = block.threads() / warp_size;
    for (int d = lane_id(block); d < rows.rows.channels; d += warp_size) {
      std::int32_t most_of = -0x7FFFFFFF - 1, least = 0x7FFFFFFF;
      for (int e = warp_id(block); e < blocks.lag; e += warps) {
        std::int32_t const value = ordered_bits{}(number(one, begin + e, d));
        most_of = max_op{}(most_of, value);
        least = min_op{}(least, value);
      }
      block.atomic_max(high + d, most_of);
      block.atomic_min(low + d, least);
    }
    block.sync();
  }

  /// The standard deviation of the channels of a row in the bounds, in every thread of a warp.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD float spread_of(Block& block, lane one, int e, std::int32_t const* inverse,
                                            std::int32_t const* low) const {
    int const dims = rows.rows.channels;
    auto const z = [&](int d) { return (number(one, e, d) - same_bits<float>(low[d])) * same_bits<float>(inverse[d]); };
    float sum = 0, squares = 0;
    for (int d = lane_id(block); d < dims; d += warp_size) sum += z(d);
    float const mean = block.reduce_warp(sum, plus_op{}) / static_cast<float>(dims);
    for (int d = lane_id(block); d < dims; d += warp_size) {
      float const apart = z(d) - mean;
      squares += apart * apart;
    }
    squares = block.reduce_warp(squares, plus_op{});
    return dims > 1 ? ::sqrtf(squares / static_cast<float>(dims - 1)) : 0 * squares;
  }

  /// Replaces numbers by e^(x - max); one warp, so that their sum has the same bits whatever the launch numbers.
  template <class Block>
  KVPOLICY_HD void add_powers(Block& block, float* spread, float* sum) const {
    float high = 0, all = 0;
    for (int e = lane_id(block); e < blocks.lag; e += warp_size) high = spread[e] > high ? spread[e] : high;
    high = block.reduce_warp(high, max_op{});
    for (int e = lane_id(block); e < blocks.lag; e += warp_size) {
      spread[e] = ::expf(spread[e] - high);
      all += spread[e];
    }
    all = block.reduce_warp(all, plus_op{});
    if (lane_id(block) == 0) *sum = all;
  }
};

/// Combines the scores of entries outside of blocks with 0.
template <class Combine>
struct outside_of_blocks {
  lagged_blocks blocks;
  Combine combine;
  score_view out;
  KVPOLICY_HD void operator()(int segment, ordinal_range of, int first, int step) const {
    int const end = blocks.end(out.lanes.committed(out.lane_of(segment)));
    float* const row = out.row(segment);
    for (int e = of.begin + first; e < of.end; e += step) {
      if (e < blocks.first || e >= end) row[e] = combine(row[e], 0.0f);
    }
  }
};

}  // namespace detail

/// Takes two launches.
template <kernel_backend Backend>
struct implementation<ops::lag_spread_t, Backend> {
  template <class Executor, class Combine>
  static void run(Executor& exec, row_view const& rows, lagged_blocks const& blocks, Combine const& combine,
                  score_view const& out) {
    detail::check_aligned("lag_spread", "rows", rows.rows);
    detail::launch_entries(exec, out, detail::outside_of_blocks<Combine>{blocks, combine, out});
    int const most = blocks.scored(out.lanes.capacity);
    if (most == 0) return;
    detail::lag_spread_kernel<Combine> const kernel{rows, blocks, combine, out, most};
    exec.launch(launch_shape{out.segments() * most, exec.threads().entry, kernel.shared()}, kernel);
  }
};

}  // namespace KVPOLICY_NAMESPACE
