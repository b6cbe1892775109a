// SPDX-License-Identifier: Apache-2.0
// Host implementation of lag_spread: a worker computes the bounds of a lane's blocks, and what they say of the blocks
// before.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/bounds.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/kernels/spread.hpp>
#include <kvpolicy/ops/host/lane_rows.hpp>
#include <kvpolicy/ops/lag_spread.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The shares of the entries of one lane.
class lag_spreads {
 public:
  static constexpr int at_once = 16;  ///< rows of a call of a kernel

  static std::size_t scratch(int dims, int bound) {
    auto const row = static_cast<std::size_t>(dims);
    return scratch_of<std::int32_t>(2 * row) + 3 * scratch_of<float>(row) + scratch_of<float>(at_once * row) +
           scratch_of<float>(static_cast<std::size_t>(std::min(bound, lagged_blocks::longest)));
  }

  lag_spreads(host_executor const& exec, row_view const& rows, lane one, int entries, int bound,
              std::span<std::byte> memory)
      : level_(exec.simd_level()),
        rows_(rows),
        lane_(one),
        at_(rows, one),
        entries_(entries),
        dims_(rows.rows.channels),
        plain_(rows.rows.contiguous() && !is_fp8(rows.rows.element) && rows.rows.scales.data == nullptr),
        element_(plain_ ? rows.rows.element : codec::f32) {
    auto const row = static_cast<std::size_t>(dims_);
    scratch_arena arena(memory);
    bounds_ = arena.take<std::int32_t>(2 * row);
    low_ = arena.take<float>(row);
    inverse_ = arena.take<float>(row);
    z_ = arena.take<float>(row);
    copies_ = arena.take<float>(at_once * row);
    share_ = arena.take<float>(static_cast<std::size_t>(std::min(bound, lagged_blocks::longest)));
  }

  /// The shares of entries [begin, begin + lag), whose bounds are those of the next `lag` entries.
  [[nodiscard]] float const* of_block(int begin, int lag) {
    element_ == codec::f32 ? bound<std::int32_t>(begin + lag, lag) : bound<std::int16_t>(begin + lag, lag);
    float high = -std::numeric_limits<float>::infinity();
    for (int e = 0; e < lag; e += at_once) {
      int const count = std::min(at_once, lag - e);
      find(begin + e, count);
      ahead(begin + 2 * lag + e, count);
      spread_of_isa[level_].of(element_)(at_row_, at_ahead_, count, dims_, low_, inverse_, z_, share_ + e);
    }
    for (int e = 0; e < lag; ++e) {
      share_[e] = dims_ > 1 ? std::sqrt(share_[e] / static_cast<float>(dims_ - 1)) : 0 * share_[e];
      high = share_[e] > high ? share_[e] : high;
    }
    for (int e = 0; e < lag; ++e) share_[e] -= high;
    float const sum = spread_of_isa[level_].powers(share_, lag);
    for (int e = 0; e < lag; ++e) share_[e] /= sum;
    return share_;
  }

 private:
  /// The bounds of entries [begin, begin + count).
  template <class Number>
  void bound(int begin, int count) {
    auto* const high = reinterpret_cast<Number*>(bounds_);
    Number* const low = high + dims_;
    for (int e = 0; e < count; e += at_once) {
      find(begin + e, std::min(at_once, count - e));
      bounds_of_isa[level_].of<Number>()(at_row_, std::min(at_once, count - e), dims_, e == 0, high, low);
    }
    std::transform(high, high + 2 * dims_, high, ordered<Number>);
    auto const to_floats = [&](Number const* from, float* to) {
      convert_row(level_, element_, reinterpret_cast<std::byte const*>(from), sizeof(Number), dims_, to);
    };
    to_floats(high, inverse_);
    to_floats(low, low_);
    for (int d = 0; d < dims_; ++d) inverse_[d] = inverse_range(inverse_[d], low_[d]);
  }

  /// Finds rows with contiguous channels of `element_`.
  void find(int begin, int count) {
    if (plain_) return at_.find(begin, begin + count, at_row_);
    for (int r = 0; r < count; ++r) {
      float* const copy = copies_ + std::ptrdiff_t{r} * dims_;
      load_row(rows_.rows.element, rows_.row(lane_, begin + r), rows_.rows.channel_stride, dims_, copy);
      if (rows_.rows.scales.data != nullptr) scale_row(rows_.scale(lane_, begin + r), dims_, copy);
      at_row_[r] = reinterpret_cast<std::byte const*>(copy);
    }
  }
  /// Finds the rows to be prefetched: those of the block whose bounds are next, as far as there are entries.
  void ahead(int begin, int count) {
    int const there = plain_ ? std::clamp(entries_ - begin, 0, count) : 0;
    at_.find(begin, begin + there, at_ahead_);
    std::copy(at_row_ + there, at_row_ + count, at_ahead_ + there);
  }

  isa level_;
  row_view const& rows_;
  lane lane_;
  lane_rows at_;
  int entries_;
  int dims_;
  bool plain_;     ///< kernels read the rows themselves, and not copies
  codec element_;  ///< of what kernels read
  std::byte const *at_row_[at_once] = {}, *at_ahead_[at_once] = {};
  std::int32_t* bounds_ = nullptr;
  float *low_ = nullptr, *inverse_ = nullptr, *z_ = nullptr, *copies_ = nullptr, *share_ = nullptr;
};

}  // namespace detail

template <>
struct implementation<ops::lag_spread_t, host> {
  static std::size_t scratch(shape const& model, int bound) {
    return detail::lag_spreads::scratch(std::max(model.head_dim, model.value_dim), bound);
  }

  template <class Combine>
  static void run(host_executor& exec, row_view const& rows, lagged_blocks const& blocks, Combine const& combine,
                  score_view const& out) {
    exec.for_each(out.segments(), [&](int segment, int worker) {
      lane const one = out.lane_of(segment);
      int const entries = out.lanes.committed(one), end = blocks.end(entries);
      float* const row = out.row(segment);
      detail::lag_spreads made(exec, rows, one, entries, out.lanes.capacity, exec.scratch(worker));
      for (int e = 0; e < std::min(blocks.first, entries); ++e) row[e] = combine(row[e], 0.0f);
      for (int begin = blocks.first; begin < end; begin += blocks.lag) {
        float const* const share = made.of_block(begin, blocks.lag);
        for (int e = 0; e < blocks.lag; ++e) row[begin + e] = combine(row[begin + e], share[e]);
      }
      for (int e = end; e < entries; ++e) row[e] = combine(row[e], 0.0f);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
