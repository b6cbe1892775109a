// SPDX-License-Identifier: Apache-2.0
// What a decision asks a scorer about itself. Most scorers answer by their type. An erased scorer (`any_scorer`)
// answers at run time, by members of the same names as the functions here. A stage answers for the scorer inside.
#pragma once

#include <algorithm>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/first_places.hpp>
#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/core/recorder.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace KVPOLICY_NAMESPACE {

namespace detail {
template <class Needs, class... More>
struct also_needed;
template <class... Signals, class... More>
struct also_needed<needs<Signals...>, More...> {
  using type = needs<Signals..., More...>;
};
}  // namespace detail

/// The signals that a stage around a scorer needs, which reads some of its own:
///
///     using needs = kvpolicy::also_needs<Score, kvpolicy::values>;
template <class Score, class... Signals>
using also_needs = typename detail::also_needed<typename Score::needs, Signals...>::type;

namespace detail {

/// A scorer, pick or trigger of which only an object, and not its type, says what it does. It declares
/// `using erased = void`.
template <class Part>
concept erased = requires { typename Part::erased; };

}  // namespace detail

/// The constant `decides` of a stage around a scorer. Of an erased scorer, which says it at run time, it has no
/// meaning.
template <class Score>
inline constexpr granularity decides_inside = [] {
  if constexpr (detail::erased<Score>) {
    return granularity::lane;
  } else {
    return granularity{Score::decides};
  }
}();

namespace detail {

/// False for a stage that has only a constant to say which lanes decide together.
template <class Score>
inline constexpr bool decides_itself = [] {
  if constexpr (stage<Score>) {
    return std::is_member_object_pointer_v<decltype(&Score::decides)>;
  } else {
    return true;
  }
}();

/// Which lanes decide together. A stage whose `decides` is a constant decides as the scorer inside.
template <class Score>
constexpr granularity decides_of(Score const& score) {
  constexpr auto question = []<class S>(S const& one) -> std::enable_if_t<decides_itself<S>, granularity> {
    return one.decides;
  };
  return ask(score, question);
}

/// A scorer that may put entries first: `places()` says how many, and `rest_scores(in)` is the function of an entry by
/// which the others are ranked. It may be `rest_scores(in, scores)`, which reads the spare rows of these scores; the
/// scorer then says `static constexpr bool rest_in_plan = true`, and no stage may be around it, which would use them.
/// If the function has a table `counts`, a number for each lane, no more entries of a lane are put first.
template <class Score>
concept puts_first = requires(Score const& score) {
  { score.places() } -> std::same_as<first_places>;
};

/// A scorer of which whole blocks of entries stay or go: `entries_of_block()` says how many. They have equal scores.
template <class Score>
concept has_blocks = requires(Score const& score) {
  { score.entries_of_block() } -> std::same_as<int>;
};

/// A scorer of blocks that ranks them anew after it is known how many stay: `ranks_again()` says whether it does.
///
///     rank_again(exec, in, competing, scores, ranks, kept)
///
/// `scores` hold what `score` wrote. In `competing`, a row of the plan's spare ones for each segment, an entry that
/// competes is 0 and another one -inf. `ranks`, the next such row, receives what the entries are picked by: equal
/// numbers for the members of a block. `kept` is how many entries stay of each lane, which it may change. Other spare
/// rows come after these.
template <class Score>
concept ranks_again = requires(Score const& score) {
  { score.ranks_again() } -> std::same_as<bool>;
};

/// True if the blocks of a scorer fill the places beside forced entries, whose last block has all its entries.
/// Otherwise a budget counts blocks, forced ones among them.
template <class Score>
inline constexpr bool fills_beside_forced = [] {
  if constexpr (requires { Score::fills_beside_forced; }) {
    return bool{Score::fills_beside_forced};
  } else {
    return false;
  }
}();

/// What a scorer says of itself. A stage changes the facts of the scorer inside. An erased scorer holds them as data.
struct scorer_facts {
  std::string_view name = "the scorer";  ///< for errors
  bool ranks_candidates = false;         ///< its scores depend on which entries compete: see `ranks_candidates`
  bool any_order = false;                ///< the order of a lane's entries does not change their scores
  bool safe_across_ranks = false;        ///< it may decide with tensor parallelism, where each rank has other heads
  std::optional<budget_scope> shares{};  ///< which lanes share the budget of a spec that does not say it
  phase when = phase::step;              ///< when it decides
  std::optional<first_places> first{};   ///< how many entries it puts first, if it does: see `puts_first`
  bool rest_in_plan = false;             ///< what the others are ranked by is in spare rows of the plan
  bool fills_beside_forced = false;      ///< of blocks: see `fills_beside_forced`
  bool ranks_again = false;              ///< of blocks: see `ranks_again`
  int block = 0;                         ///< entries that stay or go as one: see `has_blocks`; 0: each alone
  int lane_numbers = 0;                  ///< numbers of each lane that it leaves for an allotter
  bool reads_budget = false;             ///< its scores depend on how many entries a lane may keep
  bool shares_out = false;               ///< in specs an allotter shares its budgets out, unless they say by=fixed
};

template <class Score>
constexpr scorer_facts facts_of(Score const& score) {
  if constexpr (erased<Score>) {
    return score.facts();
  } else {
    scorer_facts made;
    if constexpr (stage<Score>) {
      made = facts_of(inner_of(score));
      made.lane_numbers = 0;  // they are where the scorer inside has its memory
    } else {
      if constexpr (requires { std::string(Score::name); }) made.name = Score::name;
      made.ranks_candidates = detail::ranks_candidates<Score>;
      made.safe_across_ranks = score.decides == granularity::lane;  // lanes that decide together must reduce
      if constexpr (requires { Score::shares_out; }) made.shares_out = Score::shares_out;
    }
    if constexpr (requires { Score::lane_numbers; }) made.lane_numbers = Score::lane_numbers;
    made.any_order = reads_any_order<Score>;
    if constexpr (requires { score.reads_budget(); }) made.reads_budget = score.reads_budget();
    if constexpr (requires { score.safe_across_ranks(); }) made.safe_across_ranks = score.safe_across_ranks();
    if constexpr (requires { typename std::integral_constant<budget_scope, Score::pools>; }) made.shares = Score::pools;
    if constexpr (requires { typename std::integral_constant<phase, Score::when>; }) made.when = Score::when;
    if constexpr (puts_first<Score>) made.first = score.places();
    if constexpr (requires { Score::rest_in_plan; }) made.rest_in_plan = Score::rest_in_plan;
    if constexpr (has_blocks<Score>) {
      made.block = score.entries_of_block();
      made.fills_beside_forced = detail::fills_beside_forced<Score>;
    }
    if constexpr (ranks_again<Score>) made.ranks_again = score.ranks_again();
    return made;
  }
}

/// Refuses a scorer inside any stage that has the scores of those entries that it does not put first.
template <class Score>
void refuse_rest_in_plan(char const* call, char const* what, Score const& score) {
  expects(
      !facts_of(score).rest_in_plan, call, what, [&] { return to_string(score); },
      "it puts entries first and has the scores of the others, and no stage may be around it");
}
/// Refuses a scorer of blocks inside a stage that gives each entry a score of its own.
template <class Score>
void refuse_blocks(char const* call, char const* what, Score const& score) {
  refuse_rest_in_plan(call, what, score);
  expects(
      facts_of(score).block == 0, call, what, [&] { return to_string(score); }, "its entries are in blocks already");
}
/// Refuses a scorer that puts entries first inside a stage that does so, or that makes blocks of them.
template <class Score>
void refuse_first(char const* call, char const* what, Score const& score) {
  expects(!facts_of(score).first, call, what, [&] { return to_string(score); }, "it puts single entries first");
}
/// Refuses a scorer whose lanes decide together inside a stage that reads what belongs to one lane.
template <class Score>
void refuse_lanes_together(char const* call, char const* what, Score const& score, char const* rule) {
  expects(decides_of(score) == granularity::lane, call, what, [&] { return to_string(score); }, rule);
}

/// False if no scorer of this type ranks candidates.
template <class Score>
inline constexpr bool may_rank_candidates = [] {
  if constexpr (erased<Score>) {
    return true;
  } else if constexpr (stage<Score>) {
    return may_rank_candidates<typename Score::wraps>;
  } else {
    return ranks_candidates<Score>;
  }
}();

/// False if no scorer of this type reads the budget.
template <class Score>
inline constexpr bool may_read_budget = [] {
  if constexpr (stage<Score> && !erased<Score>) {
    return may_read_budget<typename Score::wraps>;
  } else {
    return erased<Score> || requires(Score const& score) { score.reads_budget(); };
  }
}();

/// The number of rows of floats that a scorer needs besides its scores: the result of its `spare_rows(lanes, shape)`,
/// or 0 if it has no such member.
template <class Score>
constexpr int spare_rows(Score const& score, lanes const& batch, shape const& model) {
  auto const question = [&](auto const& one) -> decltype(one.spare_rows(batch, model)) {
    return one.spare_rows(batch, model);
  };
  return ask(score, question, 0);
}

/// The bytes of scratch that the verbs of a scorer need.
template <class Backend, class Score>
std::size_t scratch_of_scorer(Score const& score, shape const& model, lanes const& batch) {
  if constexpr (erased<Score>) {
    return score.scratch(model, batch);
  } else {
    std::size_t own = scratch_of_verbs<Backend>(verbs_of<Score>(), model, batch);
    if constexpr (stage<Score>) own = std::max(own, scratch_of_scorer<Backend>(inner_of(score), model, batch));
    return own;
  }
}

/// Refuses rows of signals that the scorer reads, if the host can read them. An erased scorer also refuses signals
/// without one that it needs.
template <class Backend, class Score, class Given>
void refuse_given([[maybe_unused]] char const* call, [[maybe_unused]] Score const& score,
                  [[maybe_unused]] Given const& in) {
  if constexpr (erased<Score>) {
    score.refuse_given(call, in);
  } else if constexpr (!rows_see_every_entry<Score>) {
    refuse_rows<Backend>(call, typename Score::needs{}, in);
  }
}

/// Refuses signals whose error only shows in their data, before anything is written: the hook `refuse`.
template <class Score, class Executor, class SignalSet>
void refuse_data(Score const& score, Executor& exec, SignalSet const& in) {
  ask(score, [&](auto const& one) -> decltype(one.refuse(exec, in)) { one.refuse(exec, in); });
}

/// Calls visit(scorer) with the scorer that puts entries first: this one, or the one inside a stage.
template <class Score, class Visit>
void with_first_of(Score const& score, Visit const& visit) {
  ask(score, [&]<class S>(S const& one) -> std::enable_if_t<puts_first<S>> {
    if constexpr (erased<S>) {
      if (!one.facts().first) return;
    }
    visit(one);
  });
}

/// The signals by which the scorer's decisions find unobserved lanes.
template <class Score, class SignalSet>
constexpr auto observed_by(Score const& score, SignalSet const& in) {
  if constexpr (erased<Score>) {
    return score.observed(in);
  } else {
    return observed_of(score, in);
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
