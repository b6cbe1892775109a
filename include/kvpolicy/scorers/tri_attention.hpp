// SPDX-License-Identifier: Apache-2.0
// TriAttention scores keys by what the model's mean queries will draw from them later.
#pragma once

#include <array>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/future_queries.hpp>
#include <kvpolicy/ops/logits.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/normalise.hpp>
#include <kvpolicy/ops/pair_norms.hpp>
#include <kvpolicy/ops/query_model.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// How scores of several distances become one.
enum class distance_mean { mean, max };
/// Whether the scores of a query head are z-scores over the entries that compete.
enum class head_scale { z, none };

[[nodiscard]] constexpr std::array<char const*, 2> names(distance_mean) { return {"mean", "max"}; }
[[nodiscard]] constexpr std::array<char const*, 2> names(head_scale) { return {"z", "none"}; }

/// Scores each entry by a profile of the model's queries (arXiv:2604.04921): queries of a head gather around a mean
/// before RoPE, so that what a later query draws from a key depends on their distance alone.
///
///     x_h = mean or max over d = 1, 2, 4, ... of <RoPE(m_h, t + d), k>  +  sum over pairs f of (r_hf - |m_hf|) |k_f|
///     s   = max over the group's heads h of z(x_h)                           t: the newest position + 1
///
/// m is the mean query, r the mean length of its pairs, k the key after RoPE. z-scores are over the entries that
/// compete, so it ranks candidates. The published settings keep the prompt (`prompt`), and decide each time that a lane
/// has `slack` + 1 entries more than its budget; `reduce_lanes(token, max)` is their set of one for all heads. The plan
/// has N + G (R D + D / 2) floats more for each lane of G query heads, R = 1, or `offsets` with `max`.
struct tri_attention {
  distance_mean aggregate = distance_mean::mean;
  head_scale normalise = head_scale::z;
  reduction group = reduction::max;
  int offsets = 17;

  static constexpr auto name = "tri_attention";
  static constexpr auto fields() {
    return make_fields(field{"aggregate", &tri_attention::aggregate}, field{"normalise", &tri_attention::normalise},
                       field{"group", &tri_attention::group}, field{"offsets", &tri_attention::offsets});
  }
  using needs = kvpolicy::needs<keys, query_model>;
  using verbs = kvpolicy::verbs<ops::logits_t, ops::pair_norms_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool ranks_candidates = true;
  static constexpr bool any_order = true;
  static constexpr int slack = 127;            ///< of the published settings: `over_budget{tri_attention::slack}`
  static constexpr bool keeps_prompts = true;  ///< of the published settings: `prompt`

  void check(char const* call) const {
    expects(offsets >= 1 && offsets <= 31, call, "tri_attention.offsets", offsets,
            "distances are 1, 2, 4, ..., at most 31 of them");
    expects(group != reduction::last, call, "tri_attention.group", "last", "query heads have no order");
  }
  void refuse(auto&, auto const& in) const {
    query_model::expect_part("decide", name, "radius", in.template get<query_model>().radius);
  }
  [[nodiscard]] constexpr int spare_rows(lanes const& batch, shape const& model) const {
    std::int64_t const of_head = std::int64_t{positions().rows()} * model.head_dim + model.head_dim / 2;
    return batch.size() + rows_of_scores(batch, batch.size() * model.group() * of_head);
  }

  /// Reduces the scores of one head more of the group. Those of -inf stay.
  struct of_group {
    by_lane<float> head;
    reduction how;
    bool first;
    float share;
    KVPOLICY_HD float operator()(float old, entry at) const {
      float const now = head.row(at.lane)[at.ordinal] * share;
      if (first) return now;
      return how != reduction::max ? old + now : old >= now || old != old ? old : now;
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    keys const& k = in.template get<keys>();
    query_model const& model = in.template get<query_model>();
    int const heads = model.mean.heads / out.lanes.heads, dims = model.mean.dims, rows = positions().rows();
    memory const at(out, heads, dims, rows);
    key_pairs const pairs{model.rope.style, model.turned() / 2};
    ops::future_queries(exec, out.lanes, model, positions(), future_rows{at.rows, at.spread});
    for (int h = 0; h < heads; ++h) {
      ops::map(exec, at.head, competing{out.rows});
      query_view later = one_row_a_lane(at.of_head(at.rows, h * rows * dims), dims, out.lanes);
      later.row = std::int64_t{4} * dims;
      later.rows = rows;
      ops::logits(exec, k, later, {.scale = 1.0f, .rows = reduction::max}, added{}, at.head);
      ops::pair_norms(exec, k, pairs, at.of_head(at.spread, h * pairs.count), added{}, at.head);
      if (normalise == head_scale::z) ops::normalise(exec, normalising::z, at.head);
      float const share = group == reduction::mean ? 1.0f / static_cast<float>(heads) : 1.0f;
      ops::map(exec, out, of_group{at.head.rows, group, h == 0, share});
    }
  }

  friend bool operator==(tri_attention const&, tri_attention const&) = default;

 private:
  [[nodiscard]] constexpr future_positions positions() const { return {offsets, aggregate == distance_mean::mean}; }

  /// What a lane has in the memory of the plan: scores of one query head, and the rows and spreads of all.
  struct memory {
    score_view head;
    by_lane<float> rows, spread;

    memory(score_view const& out, int heads, int dims, int rows_of_head) {
      lanes const& batch = out.lanes;
      auto const piece = [&](std::int64_t from, std::int64_t floats) {
        return contiguous_scores(batch, granularity::lane, out.spare + from, floats);
      };
      std::int64_t const of_lane = std::int64_t{heads} * rows_of_head * dims;
      head = piece(0, batch.capacity);
      rows = piece(std::int64_t{batch.size()} * batch.capacity, of_lane).rows;
      spread = piece(batch.size() * (batch.capacity + of_lane), std::int64_t{heads} * (dims / 2)).rows;
    }
    /// The part of each lane's memory that begins at a float.
    [[nodiscard]] static by_lane<float> of_head(by_lane<float> all, int first) {
      all.data += first;
      return all;
    }
  };
};

}  // namespace KVPOLICY_NAMESPACE
