// The host implementation of the verb of ops/row_norm.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/norm_kernels.hpp>
#include <kvpolicy/ops/row_norm.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::row_norm_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const&, int) { return 0; }

  template <class Combine>
  static void run(host_executor& exec, row_view const& rows, Combine const& combine, score_view const& out) {
    exec.for_each(out.segments(), [&](int segment, int) {
      lane const this_lane = out.lane_of(segment);
      combine_rows(exec.simd_level(), rows, this_lane, 0, out.lanes.committed(this_lane), combine, out.row(segment));
    });
  }

  /// Combines the norms of the entries [begin, end) of a lane.
  template <class Combine>
  static void combine_rows(isa simd_level, row_view const& rows, lane this_lane, int begin, int end,
                           Combine const& combine, float* row) {
    if (is_fp8(rows.rows.element)) {
      for (int e = begin; e < end; ++e) row[e] = combine(row[e], scaled_norm(rows, this_lane, e));
    } else if (rows.rows.contiguous()) {
      auto const square_sums = detail::norms_for(simd_level).of(rows.rows.element);
      norms_of_lane(square_sums, rows, this_lane, begin, end, combine, row);
    } else {
      for (int e = begin; e < end; ++e) row[e] = combine(row[e], strided_norm(rows, rows.row(this_lane, e)));
    }
  }

 private:
  static constexpr int rows_at_once = 16;

  /// Combines the norms of `rows_at_once` rows at a time, while the rows after them are fetched.
  template <class Combine>
  static void norms_of_lane(detail::norm_kernels::function square_sums, row_view const& rows, lane this_lane, int begin,
                            int end, Combine const& combine, float* row) {
    std::byte const* at[2][rows_at_once];
    double sums[rows_at_once];
    fetch(rows, this_lane, begin, std::min(rows_at_once, end - begin), at[0]);
    for (int e = begin, now = 0; e < end; e += rows_at_once, now ^= 1) {
      int const some = std::min(rows_at_once, end - e);
      fetch(rows, this_lane, e + some, std::min(rows_at_once, end - e - some), at[now ^ 1]);
      square_sums(at[now], some, rows.rows.dims, sums);
      for (int i = 0; i < some; ++i) row[e + i] = combine(row[e + i], static_cast<float>(std::sqrt(sums[i])));
    }
  }

  /// Finds and prefetches the rows of `count` entries.
  static void fetch(row_view const& rows, lane this_lane, int begin, int count, std::byte const** at) {
    int const bytes = rows.rows.dims * bytes_of(rows.rows.element);
    for (int i = 0; i < count; ++i) {
      at[i] = rows.row(this_lane, begin + i);
      for (int byte = 0; byte < bytes; byte += 64) __builtin_prefetch(at[i] + byte, 0, 2);
    }
  }

  static float strided_norm(row_view const& rows, std::byte const* row) {
    return static_cast<float>(
        std::sqrt(detail::strided_square_sum(rows.rows.element, row, rows.rows.dim, rows.rows.dims)));
  }
  static float scaled_norm(row_view const& rows, lane this_lane, int e) {
    std::byte const* const row = rows.row(this_lane, e);
    double sum = 0;
    for (int d = 0; d < rows.rows.dims; ++d) {
      auto const value = static_cast<double>(load(rows.rows.element, row + d * rows.rows.dim));
      sum += value * value;
    }
    return static_cast<float>(std::sqrt(sum) * std::fabs(static_cast<double>(rows.scale(this_lane, e))));
  }
};

template <>
struct implementation<ops::record_norms_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, row_view const& rows, score_view const& out) {
    exec.for_each(out.segments(), [&](int segment, int) {
      lane const this_lane = out.lane_of(segment);
      int const count = out.lanes.committed(this_lane);
      float* const row = out.row(segment);
      int begin = count;
      while (begin > 0 && !detail::any_recorded(row + begin - 1, 1)) --begin;
      implementation<ops::row_norm_t, host>::combine_rows(exec.simd_level(), rows, this_lane, begin, count,
                                                          detail::negated_once{}, row);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
