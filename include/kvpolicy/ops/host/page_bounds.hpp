// SPDX-License-Identifier: Apache-2.0
// Host implementations of the verbs that maintain page bounds.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/bounds.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/page_bounds.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {
namespace detail {

inline constexpr int rows_of_a_bound = 16;  // keys per call of a kernel

/// Computes the bounds of the pages of one lane. Keys of fp8 are converted to floats first.
template <class Number>
class page_bounder {
 public:
  page_bounder(host_executor const& exec, keys const& from, page_bound_memory const& to, scratch_arena arena)
      : simd_level_(exec.simd_level()),
        from_(from),
        to_(to),
        high_(arena.take<Number>(2 * static_cast<std::size_t>(to.dims))),
        low_(high_ + to.dims),
        copies_(arena.take<std::byte>(static_cast<std::size_t>(rows_of_a_bound * to.dims) * sizeof(Number))) {}

  /// Computes the bounds of page `which` from entries [begin, end). Entries below `there` are prefetched, because they
  /// are read next.
  void bound(lane this_lane, int which, int begin, int end, int there) const {
    std::byte const* rows[rows_of_a_bound] = {};
    for (int e = begin; e < end; e += rows_of_a_bound) {
      int const count = std::min(rows_of_a_bound, end - e);
      for (int r = 0; r < count; ++r) rows[r] = row_of(this_lane, e + r, r);
      for (int r = e + rows_of_a_bound; r < std::min(e + 2 * rows_of_a_bound, there); ++r)
        fetch(from_.row(this_lane, r));
      bounds_of_isa[simd_level_].of<Number>()(rows, count, to_.dims, e == begin, high_, low_);
    }
    std::transform(high_, high_ + 2 * to_.dims, high_, ordered<Number>);
    std::byte* const row = to_.row(this_lane, which);
    if (to_.element == from_.rows.element || is_fp8(from_.rows.element)) {
      std::memcpy(row, high_, static_cast<std::size_t>(to_.row_bytes()));
    } else {
      convert_row(simd_level_, from_.rows.element, reinterpret_cast<std::byte const*>(high_), sizeof(Number),
                  2 * to_.dims, reinterpret_cast<float*>(row));
    }
  }

 private:
  void fetch(std::byte const* row) const {
    int const bytes = to_.dims * bytes_of(from_.rows.element);
    for (int at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
  }
  /// The row of an entry with contiguous channels.
  [[nodiscard]] std::byte const* row_of(lane this_lane, int ordinal, int r) const {
    std::byte const* const row = from_.row(this_lane, ordinal);
    std::byte* const copy = copies_ + static_cast<std::size_t>(r * to_.dims) * sizeof(Number);
    if constexpr (sizeof(Number) == sizeof(float)) {
      if (is_fp8(from_.rows.element)) {
        auto* const floats = reinterpret_cast<float*>(copy);
        load_row(from_.rows.element, row, from_.rows.channel_stride, to_.dims, floats);
        scale_row(from_.scale(this_lane, ordinal), to_.dims, floats);
        return copy;
      }
    }
    if (from_.rows.contiguous()) return row;
    for (int d = 0; d < to_.dims; ++d) {
      std::memcpy(copy + static_cast<std::size_t>(d) * sizeof(Number), row + d * from_.rows.channel_stride,
                  sizeof(Number));
    }
    return copy;
  }

  isa simd_level_;
  keys const& from_;
  page_bound_memory const& to_;
  Number* high_;
  Number* low_;
  std::byte* copies_;
};

}  // namespace detail

template <>
struct implementation<ops::extend_bounds_t, host> {
  static std::size_t scratch(shape const& model, int) {
    auto const row = static_cast<std::size_t>(model.head_dim);
    return detail::scratch_of<float>(2 * row) + detail::scratch_of<float>(detail::rows_of_a_bound * row);
  }

  static void run(host_executor& exec, lanes const& batch, keys const& from, page_bound_memory const& to) {
    exec.for_each(batch.size(), [&](int i, int worker) {
      detail::scratch_arena const arena(exec.scratch(worker));
      if (from.rows.element == codec::f32 || is_fp8(from.rows.element)) {
        extend(detail::page_bounder<std::int32_t>(exec, from, to, arena), batch, batch.at(i), to);
      } else {
        extend(detail::page_bounder<std::int16_t>(exec, from, to, arena), batch, batch.at(i), to);
      }
    });
  }

 private:
  template <class Bounder>
  static void extend(Bounder const& make, lanes const& batch, lane one, page_bound_memory const& to) {
    int const committed = batch.committed(one);
    int& known = *to.known.row(one);
    for (int which = std::min(known, committed) / to.page; which < detail::pages_for(committed, to.page); ++which) {
      int const begin = which * to.page;
      make.bound(one, which, begin, committed - begin < to.page ? committed : begin + to.page, committed);
    }
    known = committed;
  }
};

template <>
struct implementation<ops::forget_bounds_t, host> {
  static void run(host_executor&, lanes const& batch, by_lane<int> const& known, int sequence, int position) {
    for (int i = 0; i < batch.size(); ++i) {
      lane const one = batch.at(i);
      if (one.sequence != sequence) continue;
      int const* const positions = batch.position.row(one);
      auto const before = std::lower_bound(positions, positions + *batch.count.row(one), position) - positions;
      *known.row(one) = std::min(*known.row(one), static_cast<int>(before));
    }
  }
};

template <>
struct implementation<ops::count_pages_t, host> {
  static void run(host_executor&, lanes const& batch, int page, lanes const& pages,
                  layer_runs const& runs = layer_runs()) {
    detail::refuse_other_tokens_in_runs("select", batch, runs);
    int most = 0;
    for (int i = 0; i < batch.size(); ++i) {
      int const count = detail::pages_for(batch.committed(batch.at(i)), page);
      *pages.count.row(batch.at(i)) = count;
      most = std::max(most, count);
    }
    for (int which = 0; which < most; ++which) pages.position.row(batch.at(0))[which] = which;
  }
};

}  // namespace KVPOLICY_NAMESPACE
