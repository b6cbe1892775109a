// SPDX-License-Identifier: Apache-2.0
// The host implementation of the verb of ops/row_norm.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/norms.hpp>
#include <kvpolicy/ops/host/lane_rows.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/segments.hpp>
#include <kvpolicy/ops/row_norm.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::row_norm_t, host> {
  template <class Combine>
  static void run(host_executor& exec, row_view const& rows, Combine const& combine, score_view const& out) {
    exec.for_each(out.segments(), [&](int segment, int) {
      lane const this_lane = out.lane_of(segment);
      combine_rows(exec, rows, this_lane, 0, out.lanes.committed(this_lane), combine, out.row(segment));
    });
  }

  /// Combines the norms of the entries [begin, end) of a lane.
  template <class Combine>
  static void combine_rows(host_executor const& exec, row_view const& rows, lane this_lane, int begin, int end,
                           Combine const& combine, float* row) {
    if (is_fp8(rows.rows.element)) {
      for (int e = begin; e < end; ++e) row[e] = combine(row[e], scaled_norm(rows, this_lane, e));
    } else if (rows.rows.contiguous()) {
      norms_of_lane(detail::norms_of_isa[exec.simd_level()], rows, this_lane, begin, end, combine, row);
    } else {
      for (int e = begin; e < end; ++e) row[e] = combine(row[e], strided_norm(rows, rows.row(this_lane, e)));
    }
  }

 private:
  static constexpr int rows_at_once = 16;
  static constexpr int most_near = 256;  ///< bytes of a row; if rows are longer, the next ones are far enough ahead

  /// Combines the norms of `rows_at_once` rows at a time, while as many rows are prefetched: about 8 KiB ahead. Rows
  /// that are still farther ahead are found too, and the page of the first of them is looked up.
  template <class Combine>
  static void norms_of_lane(detail::norms_kernels const& kernels, row_view const& rows, lane this_lane, int begin,
                            int end, Combine const& combine, float* row) {
    std::byte const* at[3][rows_at_once];
    double sums[rows_at_once] = {};
    float norms[rows_at_once];
    if (begin >= end) return;
    detail::lane_rows const of(rows, this_lane);
    auto const square_sums = kernels.of(rows.rows.element);
    bool const far = rows.rows.channels * bytes_of(rows.rows.element) <= most_near;
    find(of, begin, end, at[0]);
    find(of, begin + rows_at_once, end, at[1]);
    for (int e = begin, now = 0; e < end; e += rows_at_once, now = (now + 1) % 3) {
      int const some = std::min(rows_at_once, end - e);
      int const next = (now + 1) % 3, last = (now + 2) % 3;
      find(of, e + 2 * rows_at_once, end, at[last]);
      detail::prefetch_here(at[last][0]);
      square_sums(at[now], at[far ? last : next], some, rows.rows.channels, sums);
      kernels.roots(sums, norms);
      for (int i = 0; i < some; ++i) row[e + i] = combine(row[e + i], norms[i]);
    }
  }

  /// Finds the rows of the entries from `begin` on. After the last entry all are the last row.
  static void find(detail::lane_rows const& of, int begin, int end, std::byte const** at) {
    int const there = std::clamp(end - begin, 0, rows_at_once);
    of.find(begin, begin + there, at);
    if (there == rows_at_once) return;
    std::byte const* last;
    of.find(end - 1, end, &last);
    std::fill(at + there, at + rows_at_once, last);
  }

  static float strided_norm(row_view const& rows, std::byte const* row) {
    return static_cast<float>(
        std::sqrt(detail::strided_square_sum(rows.rows.element, row, rows.rows.channel_stride, rows.rows.channels)));
  }
  static float scaled_norm(row_view const& rows, lane this_lane, int e) {
    std::byte const* const row = rows.row(this_lane, e);
    double sum = 0;
    for (int d = 0; d < rows.rows.channels; ++d) {
      auto const value = static_cast<double>(load(rows.rows.element, row + d * rows.rows.channel_stride));
      sum += value * value;
    }
    return static_cast<float>(std::sqrt(sum) * std::fabs(static_cast<double>(rows.scale(this_lane, e))));
  }
};

template <>
struct implementation<ops::record_norms_t, host> {
  static void run(host_executor& exec, row_view const& rows, score_view const& out) {
    if (out.segments() == 0) return;
    lane const first = out.lane_of(0);
    int const all = out.lanes.committed(first);
    std::int64_t const fresh = all - recorded(out.rows.row(first), all);
    exec.for_each_range(out.segments(), fresh * rows.rows.channels * 4,
                        [&](int begin, int end, int) { record(exec, rows, out, begin, end); });
  }

 private:
  /// Records the norms of lanes [begin, end). All that it calls for a lane is short, and is inlined.
  [[gnu::flatten]] static void record(host_executor const& exec, row_view const& rows, score_view const& out, int begin,
                                      int end) {
    bool const plain = rows.rows.contiguous() && !is_fp8(rows.rows.element);
    batch some(detail::norms_of_isa[exec.simd_level()], rows.rows.element, rows.rows.channels);
    detail::for_each_segment(out, begin, end, [&](int, lane one) {
      int const count = out.lanes.committed(one);
      float* const row = out.rows.row(one);
      int const known = recorded(row, count);
      if (plain && count - known < batch::most) {
        for (int e = known; e < count; ++e) some.add(rows.row(one, e), row + e);
      } else {
        implementation<ops::row_norm_t, host>::combine_rows(exec, rows, one, known, count, negated{}, row);
      }
    });
    some.finish();
  }

  /// The number of entries of a lane before the new ones, which have no norm: their bits are those of +0. Mostly one
  /// entry is new.
  static int recorded(float const* row, int count) {
    constexpr int at_once = 64;
    static constexpr float none[at_once] = {};
    for (int newest = 0; newest < 2 && count > 0; ++newest) {
      if (detail::any_recorded(row + count - 1, 1)) return count;
      --count;
    }
    while (count >= at_once && std::memcmp(row + count - at_once, none, sizeof none) == 0) count -= at_once;
    while (count > 0 && !detail::any_recorded(row + count - 1, 1)) --count;
    return count;
  }

  /// Some rows, of any lanes, whose norms are computed together, while as many rows after them are prefetched.
  class batch {
   public:
    static constexpr int most = 16;

    batch(detail::norms_kernels const& kernels, codec element, int dims)
        : square_sums_(kernels.of(element)), roots_(kernels.roots), dims_(dims) {}

    void add(std::byte const* row, float* to) {
      rows_[now_][count_] = row;
      to_[now_][count_] = to;
      if (++count_ < most) return;
      if (waits_) finish(now_ ^ 1, most, now_);
      waits_ = true;
      now_ ^= 1;
      count_ = 0;
    }
    void finish() {
      int const rest = count_;
      if (rest == 0 && !waits_) return;
      for (int i = rest; i < most; ++i) rows_[now_][i] = rest > 0 ? rows_[now_][rest - 1] : rows_[now_ ^ 1][i];
      if (waits_) finish(now_ ^ 1, most, now_);
      finish(now_, rest, now_);
      waits_ = false;
      count_ = 0;
    }

   private:
    /// Computes the norms of `count` rows, and prefetches as many others.
    void finish(int part, int count, int ahead) {
      double sums[most] = {};
      float norms[most];
      if (count == 0) return;
      square_sums_(rows_[part], rows_[ahead], count, dims_, sums);
      roots_(sums, norms);
      for (int i = 0; i < count; ++i) *to_[part][i] = detail::negated_once{}(*to_[part][i], norms[i]);
    }

    detail::norms_kernels::function square_sums_;
    detail::norms_kernels::root_function roots_;
    int dims_;
    int now_ = 0;         ///< the part that is filled
    int count_ = 0;       ///< rows in it
    bool waits_ = false;  ///< the other part is full
    std::byte const* rows_[2][most];
    float* to_[2][most];
  };
};

}  // namespace KVPOLICY_NAMESPACE
