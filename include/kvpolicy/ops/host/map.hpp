// Host implementations of map and row_norm, which visit every entry once.
#pragma once

#include <cmath>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/row_norm.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::map_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const&, int) { return 0; }

  template <class Function>
  static void run(host_executor& exec, score_view const& scores, Function const& f) {
    exec.for_each(scores.segments(), [&](int segment, int) {
      lane const this_lane = scores.lane_of(segment);
      int const count = scores.lanes.committed(this_lane);
      int const* const position = scores.lanes.position.row(this_lane);
      float* const row = scores.row(segment);
      for (int e = 0; e < count; ++e) row[e] = f(row[e], entry{this_lane, e, count, position[e], 0});
    });
  }
};

template <>
struct implementation<ops::row_norm_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const&, int) { return 0; }

  template <class Combine>
  static void run(host_executor& exec, row_view const& rows, Combine const& combine, score_view const& out) {
    exec.for_each(out.segments(), [&](int segment, int) {
      lane const this_lane = out.lane_of(segment);
      int const count = out.lanes.committed(this_lane);
      float* const row = out.row(segment);
      if (is_fp8(rows.rows.element)) {
        for (int e = 0; e < count; ++e) row[e] = combine(row[e], scaled_norm(rows, this_lane, e));
        return;
      }
      for (int e = 0; e < count; ++e) row[e] = combine(row[e], norm(rows, rows.row(this_lane, e)));
    });
  }

 private:
  static float norm(row_view const& rows, std::byte const* row) {
    double sum = 0;
    for (int d = 0; d < rows.rows.dims; ++d) {
      std::byte const* const at = row + d * rows.rows.dim;
      auto const value = static_cast<double>(rows.rows.element == codec::f32   ? load(codec::f32, at)
                                             : rows.rows.element == codec::f16 ? load(codec::f16, at)
                                                                               : load(codec::bf16, at));
      sum += value * value;
    }
    return static_cast<float>(std::sqrt(sum));
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

}  // namespace KVPOLICY_NAMESPACE
