// SPDX-License-Identifier: Apache-2.0
// Host implementation of pooled_attention: each worker computes whole lanes.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/attention/lane_probabilities.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/row_pools.hpp>
#include <kvpolicy/ops/pooled_attention.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The attention of a lane, row by row of a block, and the pools of it.
class lane_pools : lane_probabilities {
 public:
  using lane_probabilities::lane_probabilities;

  /// Computes the mean over all rows of `group` query heads, and the highest of their pools.
  void compute(pooled_attention_options const& how, isa level, int group, float* mean, float* out) {
    int const entries = how.pooled(entries_), all = count_ * group;
    row_block block = first_block(most_rows);
    block_pools const& pools = row_pools_of_isa[level][block.rows];
    std::fill_n(mean, entries_, 0.0f);
    std::fill_n(out, entries_, 0.0f);
    for (int r = 0; r < all; r += block.rows) {
      float* const values = block_memory();
      float mass[most_rows] = {};
      probabilities(block, r, std::min(block.rows, all - r), values);
      for_each_stretch(block, values,
                       [&](block_view const& view) { pools.settle(view, entries, true, mass, mean + view.first); });
      for (std::int64_t i = std::int64_t{seen_} * block.rows; i < std::int64_t{entries} * block.rows; ++i)
        values[i] = 0;
      if (entries == 0) continue;
      find_factors(how.pool, pools, values, entries, block.rows, mass);
      pools.highest(values, entries, how.pool.width, how.pool.how == pooling::kind::max, mass, r > 0, out);
    }
    for (int e = 0; e < entries_ && all > 0; ++e) mean[e] /= static_cast<float>(all);
  }

 private:
  /// Replaces the mass of each row by what its pools are multiplied by: sums of pools are not divided by their width.
  static void find_factors(pooling const& by, block_pools const& pools, float const* values, int entries, int rows,
                           float* mass) {
    float sum[most_rows] = {};
    if (by.how == pooling::kind::max) {
      pools.add_maxima(values, entries, by.width, sum);
    } else {
      int const half = by.width / 2;
      for (int r = 0; r < rows; ++r) {
        double all = static_cast<double>(mass[r]) * by.width;
        for (std::ptrdiff_t j = 0; j < std::min(half, entries); ++j) {  // beyond an end so many pools miss it
          double const ends = static_cast<double>(values[j * rows + r]) + values[(entries - 1 - j) * rows + r];
          all -= static_cast<double>(half - j) * ends;
        }
        sum[r] = static_cast<float>(all);
      }
    }
    for (int r = 0; r < rows; ++r) mass[r] = restored(mass[r], sum[r]);
  }
};

}  // namespace detail

template <>
struct implementation<ops::pooled_attention_t, host> {
  static std::size_t scratch(shape const& model, int bound) {
    return detail::lane_probabilities::scratch(model, bound);
  }

  static void run(host_executor& exec, keys const& from, query_view rows, pooled_attention_options const& how,
                  by_lane<float> const& mean, score_view const& out) {
    rows.lse = {};
    if (rows.rows > 0) detail::check_sinks("pooled_attention", "keys.logits", from.logits.sinks, out.lanes, rows.heads);
    int const group = rows.rows > 0 ? rows.heads / out.lanes.heads : 1;
    attention_mass_options const options{.last_rows = how.last_rows};
    exec.for_each(out.segments(), [&](int segment, int worker) {
      lane const one = out.lane_of(segment);
      detail::lane_pools made(exec, from, rows, options, out, one, exec.scratch(worker));
      made.compute(how, exec.simd_level(), group, mean.row(one), out.row(segment));
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
