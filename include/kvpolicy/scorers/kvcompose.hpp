// SPDX-License-Identifier: Apache-2.0
// KVCompose scores entries by the attention of given query rows, alone and on average over the lanes of a layer.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/external_queries.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores entries by the attention of query rows that the engine makes of tokens which ask for what the prompt says
/// (KVCompose; Akulov et al. 2025, arXiv:2509.05165), as kvpress has it. The allotter `ranks` shares a budget out by
/// these scores.
///
///     p    = softmax(q k / sqrt(D)) over all keys        q: the external rows; each sees every entry
///     a_gj = max over rows, then mean over the group's query heads, of p        with `values` times |v_gj|
///     s_gj = a_gj + mean over the KV heads of the layer of a_j                  without `add_mean` a_gj
///
/// The mean is over the lanes that have an entry of that ordinal: lanes of a layer hold the same tokens when a prompt
/// ends. The plan has N floats more for each lane, without `add_mean` none.
struct kvcompose {
  reduction rows = reduction::max;
  reduction group = reduction::mean;
  bool add_mean = true;
  bool values = false;  ///< attention times the norm of the value

  static constexpr auto name = "kvcompose";
  static constexpr auto fields() {
    return make_fields(field{"rows", &kvcompose::rows}, field{"group", &kvcompose::group},
                       field{"add_mean", &kvcompose::add_mean}, field{"values", &kvcompose::values});
  }
  using needs = kvpolicy::needs<keys, kvpolicy::values, external_queries>;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool prompts_only = true;
  static constexpr bool shares_out = true;

  void check(char const* call) const {
    expects(group != reduction::last, call, "kvcompose.group", "last", "query heads have no order");
  }
  /// A mean over heads is one over those of all ranks.
  [[nodiscard]] constexpr bool safe_across_ranks() const { return !add_mean; }
  [[nodiscard]] constexpr int spare_rows(lanes const& batch, shape const&) const { return add_mean ? batch.size() : 0; }

  /// The score of an entry and the mean of those of its ordinal.
  struct with_mean {
    by_lane<float> own;
    lanes batch;
    KVPOLICY_HD float operator()(float, entry at) const {
      double sum = 0;
      int heads = 0;
      for (int h = 0; h < batch.heads; ++h) {
        lane const one{at.lane.sequence, at.lane.layer, h};
        if (batch.committed(one) <= at.ordinal) continue;
        sum += static_cast<double>(own.row(one)[at.ordinal]);
        ++heads;
      }
      return static_cast<float>(static_cast<double>(own.row(at.lane)[at.ordinal]) + sum / heads);
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    score_view const own =
        add_mean ? contiguous_scores(out.lanes, granularity::lane, out.spare, out.lanes.capacity) : out;
    external_queries from = in.template get<external_queries>();
    from.position = {};  // every row sees every entry
    ops::compute_attention_mass(exec, in.template get<keys>(), from, {.rows = rows, .group = group}, own);
    if (values) ops::row_norm(exec, in.template get<kvpolicy::values>(), multiplied{}, own);
    if (add_mean) ops::map(exec, out, with_mean{own.rows, out.lanes});
  }

  friend bool operator==(kvcompose const&, kvcompose const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
