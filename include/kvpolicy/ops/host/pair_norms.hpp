// SPDX-License-Identifier: Apache-2.0
// Host implementation of pair_norms: a row is made floats, and its pairs are added up.
#pragma once

#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/pair_norms.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::pair_norms_t, host> {
  static std::size_t scratch(shape const& model, int) {
    return detail::scratch_of<float>(static_cast<std::size_t>(model.head_dim));
  }

  template <class Combine>
  static void run(host_executor& exec, keys const& from, key_pairs const& pairs, by_lane<float> const& weights,
                  Combine const& combine, score_view const& out) {
    plane const& rows = from.rows;
    exec.for_each(out.segments(), [&](int segment, int worker) {
      lane const one = out.lane_of(segment);
      auto* const row =
          detail::scratch_arena(exec.scratch(worker)).take<float>(static_cast<std::size_t>(rows.channels));
      float* const to = out.row(segment);
      int const count = out.lanes.committed(one);
      for (int e = 0; e < count; ++e) {
        detail::convert_row(exec.simd_level(), rows.element, from.row(one, e), rows.channel_stride, rows.channels, row);
        float const sum = sum_of(row, pairs, weights.row(one));
        to[e] = combine(to[e], rows.scales.data != nullptr ? sum * std::fabs(from.scale(one, e)) : sum);
      }
    });
  }

 private:
  static float sum_of(float const* row, key_pairs const& pairs, float const* weight) {
    float sum[4] = {};  // apart, so that additions do not wait for each other
    for (int f = 0; f < pairs.count; ++f) {
      float const x = row[pairs.first(f)], y = row[pairs.second(f)];
      sum[f % 4] += weight[f] * std::sqrt(x * x + y * y);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
};

}  // namespace KVPOLICY_NAMESPACE
