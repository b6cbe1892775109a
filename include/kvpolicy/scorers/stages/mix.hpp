// SPDX-License-Identifier: Apache-2.0
// Stage: one score less another.
#pragma once

#include <algorithm>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/recency.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {
/// What a stage reads around two scorers.
template <class Score, class Needs>
struct needs_of_both;
template <class Score, class... Signals>
struct needs_of_both<Score, needs<Signals...>> {
  using type = also_needs<Score, Signals...>;
};
/// A scorer that a stage may run beside the one inside: by itself it scores every entry of each lane alone.
template <class With>
concept runs_beside = !stage<With> && !erased<With> && !ranks_candidates<With> && With::decides == granularity::lane &&
                      std::tuple_size_v<decltype(recorders_of(std::declval<With const&>()))> == 0 &&
                      !requires(With const& one) { one.reads_budget(); };
}  // namespace detail

/// The score less that of another scorer, as R-KV takes importance less redundancy.
///
///     s' = lambda s - (1 - lambda) t     t: the score by `With{}`
///
///     kv::mix<kv::snapkv, kv::knorm>{.lambda = 0.7f}     by name: snapkv | mix(lambda=0.7, with=knorm)
///
/// The two are as large as their scorers make them; `normalised` before it is a scale for the first. With a lambda of 1
/// it is the scorer inside alone. The plan has another row of scores for each lane.
template <scorer Score, scorer With = recency>
struct mix {
  Score score_of{};
  float lambda = 0.5f;

  static constexpr auto name = "mix";
  static constexpr auto fields() { return make_fields(field{"lambda", &mix::lambda}); }
  using needs = typename detail::needs_of_both<Score, typename With::needs>::type;
  using wraps = Score;
  using verbs = decltype(detail::verbs_of<With>());
  static constexpr granularity decides = decides_inside<Score>;
  static constexpr bool ranks_candidates = detail::ranks_candidates<Score>;
  static constexpr bool rows_see_every_entry = detail::rows_see_every_entry<Score>;
  static_assert(detail::runs_beside<With>,
                "kvpolicy: the other scorer of mix scores each lane alone, without recorders, stages or the budget");

  /// The score of an entry by both. An entry that does not compete keeps its score.
  struct weighed {
    float lambda;
    by_lane<float> other;
    KVPOLICY_HD float operator()(float old, entry at) const {
      return detail::competes(old) ? lambda * old - (1 - lambda) * other.row(at.lane)[at.ordinal] : old;
    }
  };

  /// The same stage around another scorer.
  template <scorer Other>
  [[nodiscard]] constexpr mix<Other, With> around(Other const& other) const {
    return {other, lambda};
  }
  void check(char const* call) const {
    expects(lambda >= 0 && lambda <= 1, call, "mix.lambda", lambda, "the part of the score so far, 0 to 1");
    detail::refuse_lanes_together(call, "mix.score_of", score_of, "the other score is one of a lane");
    detail::refuse_blocks(call, "mix.score_of", score_of);
  }
  void refuse(auto& exec, auto const& in) const {
    detail::refuse_data(score_of, exec, in);
    detail::refuse_data(With{}, exec, in);
  }
  /// A row of scores for each lane, and those that the scorers ask for, one after the other.
  [[nodiscard]] constexpr int spare_rows(lanes const& batch, shape const& model) const {
    return batch.size() +
           std::max(detail::spare_rows(score_of, batch, model), detail::spare_rows(With{}, batch, model));
  }
  void score(auto& exec, auto const& in, score_view const& out) const {
    score_view of_inner = out;
    of_inner.spare = out.spare + std::int64_t{out.lanes.size()} * out.lanes.capacity;
    score_of.score(exec, in, of_inner);
    if (lambda == 1) return;
    score_view other = contiguous_scores(out.lanes, granularity::lane, out.spare, out.lanes.capacity);
    other.spare = of_inner.spare;
    With{}.score(exec, in, other);
    ops::map(exec, out, weighed{lambda, other.rows});
  }

  friend bool operator==(mix const&, mix const&) = default;
};

/// "snapkv(...) | mix(lambda=0.7, with=knorm)"
template <class Score, class With>
[[nodiscard]] std::string print(mix<Score, With> const& of) {
  return to_string(of.score_of) + " | mix(lambda=" + to_string(of.lambda) + ", with=" + With::name + ")";
}

}  // namespace KVPOLICY_NAMESPACE
