// SPDX-License-Identifier: Apache-2.0
// Stage: the best entries by a score get a part of the budget, and the rest is ranked by the score times a norm.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/scorers/projected_norms.hpp>
#include <kvpolicy/scorers/stages/put_first.hpp>

namespace KVPOLICY_NAMESPACE {

/// Gives the part `first` of a lane's budget to the best entries by a scorer, and the rest to entries whose values
/// count in what the layer returns: those with the highest score times the l1 norm of the projected value (CriticalKV,
/// Feng et al. 2025, arXiv:2502.03805, algorithm 1).
///
///     s'_j = +inf for the best max(1, int(first B)) entries by s, forced ones among them; none if first = 0
///     s'_j = (s_j + epsilon) || W_o v_j ||_1 for the others                  mean over the group's query heads
///
/// `epsilon` lets entries with a score of 0 be chosen by their values. It reads `value_norms` or else `values` and
/// `output_projection`, beside what its scorer reads. The plan has another row of scores for each lane. Pick `top`
/// only, and no stage may be around it.
template <scorer Score>
struct critical {
  Score score_of{};
  double first = 0.5;
  float epsilon = 1e-4f;
  double sure = 0;  ///< where lanes share a budget: the part of the average that each is sure of is put first, too

  static constexpr auto name = "critical";
  static constexpr auto fields() {
    return make_fields(field{"first", &critical::first}, field{"epsilon", &critical::epsilon},
                       field{"sure", &critical::sure});
  }
  using needs = also_needs<Score, norms_or_values, norms_or_projection>;
  using wraps = Score;
  using verbs = kvpolicy::verbs<ops::projected_norm_t>;
  static constexpr granularity decides = decides_inside<Score>;
  static constexpr bool rows_see_every_entry = detail::rows_see_every_entry<Score>;
  static constexpr bool rest_in_plan = true;
  static_assert(!detail::ranks_candidates<Score>, "kvpolicy: critical needs a scorer that scores every entry");

  /// The score of an entry before it is multiplied by the norm.
  struct raised {
    by_lane<float> score;
    float epsilon;
    KVPOLICY_HD float operator()(float, entry at) const { return score.row(at.lane)[at.ordinal] + epsilon; }
  };

  /// The same stage around another scorer.
  template <scorer Other>
  [[nodiscard]] constexpr critical<Other> around(Other const& other) const {
    return {other, first, epsilon, sure};
  }
  void check(char const* call) const {
    expects(!detail::facts_of(score_of).ranks_candidates, call, "critical.score_of", to_string(score_of),
            "it ranks the entries that compete, and critical needs a score of every entry");
    detail::refuse_lanes_together(call, "critical.score_of", score_of, "a value belongs to one lane");
    detail::refuse_blocks(call, "critical.score_of", score_of);
    detail::refuse_first(call, "critical.score_of", score_of);
    expects(first >= 0 && first <= 1, call, "critical.first", first, "a part of the budget, 0 to 1");
    expects(sure >= 0 && sure <= 1, call, "critical.sure", sure, "a part of the budget, 0 to 1");
    expects(epsilon >= 0, call, "critical.epsilon", epsilon, "it is added to every score, 0 or more");
  }
  [[nodiscard]] constexpr first_places places() const { return {.part = first, .of_budget = true, .sure = sure}; }
  [[nodiscard]] static put_first_rest rest_scores(auto const&, score_view const& scores) {
    return {.by = put_first_rest::kind::rows, .rows = rest_of(scores).rows};
  }
  /// A row of scores for each lane, and those that the scorer inside asks for.
  [[nodiscard]] constexpr int spare_rows(lanes const& batch, shape const& model) const {
    return batch.size() + detail::spare_rows(score_of, batch, model);
  }
  void score(auto& exec, auto const& in, score_view const& out) const {
    score_view of_inner = out;
    of_inner.spare = out.spare + std::int64_t{out.lanes.size()} * out.lanes.capacity;
    score_of.score(exec, in, of_inner);
    score_view const rest = rest_of(out);
    ops::map(exec, rest, raised{out.rows, epsilon});
    detail::apply_projected_norms(exec, in, {norm_of_row::l1}, multiplied{}, rest);
  }

  friend bool operator==(critical const&, critical const&) = default;

 private:
  /// The scores of the entries that are not put first, in the plan's first spare rows.
  static score_view rest_of(score_view const& scores) {
    return contiguous_scores(scores.lanes, granularity::lane, scores.spare, scores.lanes.capacity);
  }
};

/// "snapkv(...) | critical(first=0.5, epsilon=1e-04)"
template <class Score>
[[nodiscard]] std::string print(critical<Score> const& of) {
  return to_string(of.score_of) + " | critical(first=" + to_string(of.first) + ", epsilon=" + to_string(of.epsilon) +
         (of.sure > 0 ? ", sure=" + to_string(of.sure) : "") + ")";
}

}  // namespace KVPOLICY_NAMESPACE
