// Device implementations of the verbs that visit every entry once: map, row_norm and record_norms.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/entries_of.hpp>
#include <kvpolicy/ops/cuda/rows.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/row_norm.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

template <class Function>
struct map_kernel {
  score_view scores;
  Function f;

  KVPOLICY_HD void operator()(int segment, ordinal_range of, int first, int step) const {
    lane const this_lane = scores.lane_of(segment);
    int const count = scores.lanes.committed(this_lane);
    int const* const position = scores.lanes.position.row(this_lane);
    float* const row = scores.row(segment);
    for (int e = of.begin + first; e < of.end; e += step) {
      entry const at{this_lane, e, count, position[e], 0};
      row[e] = f(row[e], at);
    }
  }
};

template <class Combine>
struct row_norm_kernel {
  row_view rows;
  Combine combine;
  score_view out;

  /// Computes the norm of each row, one warp for each row; consecutive threads read consecutive elements.
  template <class Block>
  KVPOLICY_HD void operator()(Block& block, int segment, ordinal_range of) const {
    lane const this_lane = out.lane_of(segment);
    float* const row = out.row(segment);
    int const warps = block.threads() / warp_size;
    for (int e = of.begin + warp_id(block); e < of.end; e += warps) {
      std::byte const* const from = rows.row(this_lane, e);
      double sum = is_fp8(rows.rows.element) ? sum_of_fp8(lane_id(block), from) : 0.0;
      for (int d = lane_id(block); d < rows.rows.dims && !is_fp8(rows.rows.element); d += warp_size) {
        auto const value = static_cast<double>(element_at(rows.rows.element, from + d * rows.rows.dim));
        sum += value * value;
      }
      sum = block.reduce_warp(sum, plus_op{});
      float const scale = rows.rows.scales.data != nullptr ? rows.scale(this_lane, e) : 1.0f;
      if (lane_id(block) == 0) {
        row[e] = combine(row[e], static_cast<float>(::sqrt(sum) * ::fabs(static_cast<double>(scale))));
      }
    }
  }

 private:
  [[nodiscard]] KVPOLICY_HD double sum_of_fp8(int first, std::byte const* from) const {
    double sum = 0;
    for (int d = first; d < rows.rows.dims; d += warp_size) {
      auto const value = static_cast<double>(any_element_at(rows.rows.element, from + d * rows.rows.dim));
      sum += value * value;
    }
    return sum;
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::map_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor, class Function>
  static void run(Executor& exec, score_view const& scores, Function const& f) {
    detail::launch_entries(exec, scores, detail::map_kernel<Function>{scores, f});
  }
};

template <kernel_backend Backend>
struct implementation<ops::row_norm_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor, class Combine>
  static void run(Executor& exec, row_view const& rows, Combine const& combine, score_view const& out) {
    detail::check_aligned("row_norm", "rows", rows.rows);
    detail::launch_pieces(exec, out, detail::row_norm_kernel<Combine>{rows, combine, out});
  }
};

/// Takes one launch, which reads every row again and keeps the recorded norms.
template <kernel_backend Backend>
struct implementation<ops::record_norms_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, row_view const& rows, score_view const& out) {
    ops::row_norm(exec, rows, detail::negated_once{}, out);
  }
};

}  // namespace KVPOLICY_NAMESPACE
