// SPDX-License-Identifier: Apache-2.0
// Scores entries by the attention of query heads that are known to find facts.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/label.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/attention_moments.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/pool.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/model_tables.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/recorders/query_ring.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by the attention that the last `window` query rows pay to it, where each query head has a weight
/// of its own (CompressKV, Lin et al. 2025, arXiv:2508.02401, section 3.2): those that retrieve have 1, the others 0.
///
///     s_h = pool(sum over rows of softmax(q k / sqrt(D)))            of each query head h, before the window
///     s   = sum over the lane's heads h of w_h s_h  /  sum of w over all query heads of the layer
///
/// The paper's score is the sum over the lanes of a layer, which keep the same tokens: `reduce_lanes(layer, sum)`. The
/// entries of the window are forced. The plan has another row of scores for each lane.
struct voted_attention {
  int window = 8;  ///< the number of last query rows that score; their entries are kept
  pooling pool = avg_pool{5};
  label table{{"voters"}};  ///< the name of the weights in specs
  rows_of_heads weights{};  ///< one for each query head of a KV head's group, in memory that the executor can read

  static constexpr auto name = "voted_attention";
  static constexpr auto fields() {
    return make_fields(field{"window", &voted_attention::window}, field{"pool", &voted_attention::pool},
                       field{"voters", &voted_attention::table});
  }
  using needs = kvpolicy::needs<keys, recent_queries>;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t, ops::pool_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr phase when = phase::prefill;
  static constexpr bool prompts_only = true;

  /// Takes the table that `table` names, when a spec is read.
  void use_table(rows_of_heads const& named) { weights = named; }

  void check(char const* call) const {
    expects(window >= 1, call, "voted_attention.window", window, "at least one row observes");
    expects(pool.width >= 1 && pool.width % 2 == 1, call, "voted_attention.pool", pool.width,
            "a pool has an odd width");
  }
  void check(char const* call, shape const& model) const {
    check(call);
    expects(weights.rows.data != nullptr, call, "voted_attention.voters", "null", "each query head has a weight");
    expects(weights.dims == model.group(), call, "voted_attention.voters.dims", weights.dims,
            [&] { return "a KV head of the model has " + std::to_string(model.group()) + " query heads"; });
  }
  [[nodiscard]] constexpr recent forces() const { return {window}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{query_ring{window}}; }
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch, shape const&) { return batch.size(); }

  /// Adds a head's part of the score.
  struct vote {
    by_lane<float> head;
    rows_of_heads weights;
    int heads;  ///< KV heads of a layer
    int which;
    KVPOLICY_HD float operator()(float old, entry at) const {
      float const part = weights.rows.row(at.lane)[which] * head.row(at.lane)[at.ordinal];
      float const sum = which == 0 ? part : old + part;
      if (which + 1 < weights.dims) return sum;
      float all = 0;
      for (int g = 0; g < heads; ++g) {
        for (int h = 0; h < weights.dims; ++h) all += weights.rows.row(lane{at.lane.sequence, at.lane.layer, g})[h];
      }
      return sum == 0 && all == 0 ? 0.0f : sum / all;
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    keys const& k = in.template get<keys>();
    auto const& rows = in.template get<recent_queries>();
    score_view const of_head = contiguous_scores(out.lanes, granularity::lane, out.spare, out.lanes.capacity);
    for (int h = 0; h < weights.dims; ++h) {
      ops::compute_attention_mass(exec, detail::keys_of_head(k, weights.dims, h),
                                  detail::rows_of_head(rows, weights.dims, h), {.last_rows = window}, of_head);
      ops::pool(exec, pool, of_head, window);
      ops::map(exec, out, vote{of_head.rows, weights, out.lanes.heads, h});
    }
  }

  friend bool operator==(voted_attention const&, voted_attention const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
