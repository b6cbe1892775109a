// SPDX-License-Identifier: Apache-2.0
// KVzip keeps what the model reads when it repeats the prompt.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/attention_moments.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/query_model.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/ops/span_attention.hpp>
#include <kvpolicy/parts/budget.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/external_queries.hpp>
#include <kvpolicy/scorers/projected_norms.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores entries by the attention that they get while the model repeats the prompt chunk by chunk (Kim et al. 2025,
/// arXiv:2505.23416). The scores depend on no question, so the cache serves any that comes later.
///
///     p   = softmax(q k / sqrt(D)) over the first `sinks` entries, those of the chunk, and what was repeated so far
///     s_j = max over the chunk's rows and the group's query heads of p
///
/// The engine runs the model over each chunk after a request to repeat it, and gives the queries and the keys of that
/// run: `external_queries` with `spans` that say which entries each row repeats, and the rows' own keys. An entry that
/// no row repeats scores 0. The first `sinks` are forced, and all lanes share one budget. Decide once, at the end of
/// the prefill. `frozen<kvzip>` with `freezing::highest` observes one chunk after another, so that the engine need not
/// hold the rows of all.
struct kvzip {
  int sinks = 4;

  static constexpr auto name = "kvzip";
  static constexpr auto fields() { return make_fields(field{"sinks", &kvzip::sinks}); }
  using needs = kvpolicy::needs<keys, external_queries>;
  using verbs = kvpolicy::verbs<ops::span_attention_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr budget_scope pools = budget_scope::sequence;
  static constexpr phase when = phase::prefill;
  static constexpr bool prompts_only = true;

  void check(char const* call) const { expects(sinks >= 0, call, "kvzip.sinks", sinks, "a count cannot be negative"); }
  [[nodiscard]] constexpr kvpolicy::sinks forces() const { return {sinks}; }

  void score(auto& exec, auto const& in, score_view const& out) const {
    external_queries const& rows = in.template get<external_queries>();
    ops::span_attention(exec, in.template get<keys>(), rows, rows.spans, {.sinks = sinks}, out);
  }

  friend bool operator==(kvzip const&, kvzip const&) = default;
};

/// KVzip+: the same attention, times what the entry then adds to the layer's output, over the length of the hidden
/// state that it is added to.
///
///     s_j = max over the chunk's rows r and the group's query heads h of p_hrj || W_o,h v_j ||_2 / || x_r ||
///
/// The engine also gives `hidden_norm` of the rows, and `values` and `output_projection`. Where it gives `value_norms`
/// instead, the query heads of a group have one norm. The plan has a row of scores more for each lane.
struct kvzip_plus {
  int sinks = 4;

  static constexpr auto name = "kvzip_plus";
  static constexpr auto fields() { return make_fields(field{"sinks", &kvzip_plus::sinks}); }
  using needs = kvpolicy::needs<keys, external_queries, norms_or_values, norms_or_projection>;
  using verbs = kvpolicy::verbs<ops::span_attention_t, ops::projected_norm_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr budget_scope pools = budget_scope::sequence;
  static constexpr phase when = phase::prefill;
  static constexpr bool prompts_only = true;

  void check(char const* call) const {
    expects(sinks >= 0, call, "kvzip_plus.sinks", sinks, "a count cannot be negative");
  }
  void refuse(auto&, auto const& in) const {
    external_queries const& rows = in.template get<external_queries>();
    expects(rows.rows == 0 || rows.hidden_norm.data != nullptr, "decide", "external_queries.hidden_norm", "null",
            "kvzip_plus divides by the norm of each row's hidden state");
  }
  [[nodiscard]] constexpr kvpolicy::sinks forces() const { return {sinks}; }
  [[nodiscard]] static int spare_rows(lanes const& batch, shape const&) { return batch.size(); }

  /// The attention times the norm; what adds nothing has the score 0, whatever the attention.
  struct by_norm {
    KVPOLICY_HD float operator()(float attention, float norm) const {
      return norm == 0 && attention == attention ? 0 : attention * norm;
    }
  };
  /// The score of the query head that gives most.
  struct highest {
    by_lane<float> head;
    KVPOLICY_HD float operator()(float old, entry at) const {
      float const now = head.row(at.lane)[at.ordinal];
      return now > old || now != now ? now : old;
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    external_queries const& rows = in.template get<external_queries>();
    int const group = rows.rows > 0 ? rows.heads / out.lanes.heads : 1;
    score_view const spare = contiguous_scores(out.lanes, granularity::lane, out.spare, out.lanes.capacity);
    for (int h = 0; h < group; ++h) {
      score_view const& head = h == 0 ? out : spare;
      ops::span_attention(exec, detail::keys_of_head(in.template get<keys>(), group, h), one_of_group(rows, h, group),
                          rows.spans, {.sinks = sinks, .divide_by = rows.hidden_norm}, head);
      detail::apply_projected_norms(exec, in, {norm_of_row::l2, h, group}, by_norm{}, head);
      if (h > 0) ops::map(exec, out, highest{spare.rows});
    }
  }

  friend bool operator==(kvzip_plus const&, kvzip_plus const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
