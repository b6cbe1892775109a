// SPDX-License-Identifier: Apache-2.0
// CapKV keeps the entries whose values add the most to what the values of likely entries can say.
#pragma once

#include <cmath>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/leverage.hpp>
#include <kvpolicy/ops/logits.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/ops/row_stats.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/ops/span_attention.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/known_queries.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by the weighted leverage of its value, as kvpress's CapKV does: how much of the capacity of a
/// channel is its own, whose inputs are values and whose noise is that of unit matrices.
///
///     c_hj = cos(a_h, k_j)                        a: the mean query of head h at later positions
///     w_hj = e^(tau (c_hj - highest c_h))
///     M_h  = I + sum of (w_hj + epsilon) v_j^T v_j
///     s_j  = mean over the group's heads h of w_hj v_j M_h^-1 v_j^T
///
/// All sums are over the entries at positions from `sinks` on. The entries before are forced, and score 0. a is the
/// mean of `query_model` where that is given, or else of `pre_rope_queries` at positions from `sinks` on, turned by the
/// mean of RoPE's matrices at the next `future` positions. The plan has N + D + 1 floats more for each lane.
struct cap_kv {
  float tau = 5;
  int future = 512;  ///< positions behind the newest entry; 0: queries are taken as they are
  int sinks = 4;
  float epsilon = 1e-6f;

  static constexpr auto name = "cap_kv";
  static constexpr auto fields() {
    return make_fields(field{"tau", &cap_kv::tau}, field{"future", &cap_kv::future}, field{"sinks", &cap_kv::sinks},
                       field{"epsilon", &cap_kv::epsilon});
  }
  using needs = kvpolicy::needs<keys, values, any_signal_of<pre_rope_queries, query_model>>;
  using verbs = kvpolicy::verbs<ops::query_moments_t, ops::future_moments_t, ops::logits_t, ops::leverage_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool any_order = true;
  static constexpr phase when = phase::prefill;
  static constexpr bool prompts_only = true;

  void check(char const* call) const {
    expects(tau >= 0 && tau - tau == 0, call, "cap_kv.tau", tau, "a finite number, 0 or more");
    expects(future >= 0, call, "cap_kv.future", future, "a count cannot be negative");
    expects(sinks >= 0, call, "cap_kv.sinks", sinks, "a count cannot be negative");
    expects(epsilon >= 0 && epsilon - epsilon == 0, call, "cap_kv.epsilon", epsilon, "a finite number, 0 or more");
  }
  [[nodiscard]] constexpr kvpolicy::sinks forces() const { return {sinks}; }
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch, shape const& model) {
    return batch.size() + rows_of_scores(batch, std::int64_t{batch.size()} * (1 + model.head_dim));
  }

  /// True of the entries that take part.
  struct behind_sinks {
    int sinks;
    KVPOLICY_HD bool operator()(entry at) const { return at.position >= sinks; }
  };
  /// The product so far, over a norm.
  struct over_norm {
    KVPOLICY_HD float operator()(float old, float norm) const { return old / (norm < 1e-12f ? 1e-12f : norm); }
  };
  /// The weight of an entry by its cosine.
  struct weight_of {
    float tau;
    by_lane<float> highest;
    KVPOLICY_HD float operator()(float cosine, entry at) const {
      return std::exp(tau * (cosine - *highest.row(at.lane)));
    }
  };
  /// Adds the leverage of one head more of the group.
  struct of_group {
    by_lane<float> head;
    behind_sinks part;
    bool first;
    float share;
    KVPOLICY_HD float operator()(float old, entry at) const {
      float const now = part(at) ? share * head.row(at.lane)[at.ordinal] : 0;
      return first ? now : old + now;
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    keys const& k = in.template get<keys>();
    lanes const& batch = out.lanes;
    int const dims = k.rows.channels, group = detail::known_query_heads(in) / batch.heads;
    behind_sinks const part{sinks};
    score_view const head = contiguous_scores(batch, granularity::lane, out.spare, batch.capacity);
    float* const rest = out.spare + std::int64_t{batch.size()} * batch.capacity;
    by_lane<float> const highest = contiguous_scores(batch, granularity::lane, rest, 1).rows;
    moments_of_queries const at{contiguous_scores(batch, granularity::lane, rest + batch.size(), dims).rows};
    for (int h = 0; h < group; ++h) {
      query_model const later = detail::future_queries_of(exec, in, batch, {h, group, sinks, future}, dims, at);
      ops::logits(exec, k, later.mean, {.scale = 1.0f}, replaced{}, head);
      ops::row_norm(exec, k, over_norm{}, head);
      ops::row_norm(exec, same_row(later.mean), over_norm{}, head);
      ops::row_stats(exec, head, part, statistic::highest, highest);
      ops::map(exec, head, weight_of{tau, highest});
      by_lane<float const> const weights{head.rows.data, head.rows.sequence, head.rows.layer, head.rows.head};
      ops::leverage(exec, in.template get<values>(),
                    {.jitter = 1, .centre = false, .weights = weights, .more = epsilon}, part, head);
      ops::map(exec, out, of_group{head.rows, part, h == 0, 1.0f / static_cast<float>(group)});
    }
  }

  friend bool operator==(cap_kv const&, cap_kv const&) = default;

 private:
  /// A row of each lane as that of all of its entries.
  static row_view same_row(query_view of) {
    of.row = 0;
    return detail::keys_of_rows(of, {.keys = of});
  }
};

}  // namespace KVPOLICY_NAMESPACE
