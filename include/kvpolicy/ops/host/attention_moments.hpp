// SPDX-License-Identifier: Apache-2.0
// Host implementation of attention_moments: each worker computes whole lanes.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/attention_moments.hpp>
#include <kvpolicy/ops/host/attention/lane_probabilities.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/row_sums.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The moments of one query head of a lane.
class lane_moments : lane_probabilities {
 public:
  using lane_probabilities::lane_probabilities;

  /// Computes moments over the rows of the probabilities of each entry before the rows. Sums stand where the scores
  /// will, and those of squares where a mass would.
  void compute(isa level, entry_moments const& to) {
    float* const squares = entry_numbers();
    row_block block = first_block(most_rows);
    block_row_sums const& sums = row_sums_of_isa[level][block.rows];
    int const entries = count_ > 0 ? before_rows() : 0;
    if (!to.accumulate) std::fill_n(to.entropy, entries_, 0.0f);
    for (int r = 0; r < count_; r += block.rows) {
      probabilities(block, r, std::min(block.rows, count_ - r), block_memory());
      for_each_stretch(block, block_memory(), [&](block_view view) {
        view.count = std::min(view.count, entries - view.first);
        if (view.count <= 0) return;
        int const e = view.first;
        sums.moments(view, r > 0, to.score + e, squares + e, to.entropy + e);
      });
    }
    for (int e = 0; e < entries; ++e) to.put(e, count_, to.score[e], squares[e]);
    for (int e = entries; e < entries_; ++e) to.put(e, count_, 0, 0);
  }
};

}  // namespace detail

template <>
struct implementation<ops::attention_moments_t, host> {
  static std::size_t scratch(shape const& model, int bound) {
    return detail::lane_probabilities::scratch(model, bound);
  }

  static void run(host_executor& exec, keys const& from, query_view const& rows, moments_options const& how,
                  moment_rows const& to, score_view const& out) {
    if (rows.rows > 0)
      detail::check_sinks("attention_moments", "keys.logits", from.logits.sinks, out.lanes, rows.heads);
    int const group = rows.rows > 0 ? rows.heads / out.lanes.heads : 1;
    query_view const some = detail::rows_of_head(rows, group, how.head);
    keys const those = detail::keys_of_head(from, group, how.head);
    attention_mass_options const options{.rows = reduction::mean, .last_rows = how.last_rows};
    exec.for_each(out.segments(), [&](int segment, int worker) {
      lane const one = out.lane_of(segment);
      detail::lane_moments made(exec, those, some, options, out, one, exec.scratch(worker));
      made.compute(exec.simd_level(),
                   {out.row(segment), to.variance.row(one), to.entropy.row(one), how.gamma, how.accumulate});
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
