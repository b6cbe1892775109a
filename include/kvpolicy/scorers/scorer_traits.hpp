// What a decision asks a scorer about itself. Most scorers answer by their type. An erased scorer (`any_scorer`)
// answers at run time, by members of the same names as the functions here. A stage answers for the scorer inside.
#pragma once

#include <algorithm>
#include <kvpolicy/core/check_counts.hpp>
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

/// Which lanes decide together. A stage whose `decides` is a constant decides as the scorer inside.
template <class Score>
constexpr granularity decides_of(Score const& score) {
  constexpr bool is_member = requires { requires std::is_member_object_pointer_v<decltype(&Score::decides)>; };
  if constexpr (!is_member && stage<Score>) {
    return decides_of(inner_of(score));
  } else {
    return score.decides;
  }
}
/// True if the scorer's scores depend on which entries compete. See `ranks_candidates`.
template <class Score>
constexpr bool ranks_candidates_of([[maybe_unused]] Score const& score) {
  if constexpr (erased<Score>) {
    return score.ranks();
  } else if constexpr (stage<Score>) {
    return ranks_candidates_of(inner_of(score));
  } else {
    return ranks_candidates<Score>;
  }
}
/// False if no scorer of this type can.
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

/// True if the order of a lane's entries does not change their scores. See `any_order`.
template <class Score>
constexpr bool reads_any_order_of([[maybe_unused]] Score const& score) {
  if constexpr (erased<Score>) {
    return score.reads_any_order();
  } else {
    return reads_any_order<Score>;
  }
}

/// A scorer's name, for errors; that of the scorer inside a stage.
template <class Score>
std::string_view name_of_scorer(Score const& score) {
  if constexpr (erased<Score>) {
    return score.name_inside();
  } else if constexpr (stage<Score>) {
    return name_of_scorer(inner_of(score));
  } else if constexpr (requires { std::string(Score::name); }) {
    return Score::name;
  } else {
    return "the scorer";
  }
}

/// The number of rows of floats that a scorer needs besides its scores: the result of its `spare_rows(lanes, shape)`,
/// or 0 if it has no such member.
template <class Score>
int spare_rows(Score const& score, lanes const& batch, shape const& model) {
  if constexpr (requires { score.spare_rows(batch, model); }) {
    return score.spare_rows(batch, model);
  } else if constexpr (stage<Score>) {
    return spare_rows(inner_of(score), batch, model);
  } else {
    return 0;
  }
}

/// True if it is safe to use a scorer with tensor parallelism, where each rank has other heads. A scorer whose lanes
/// decide alone is safe; one whose lanes decide together must reduce its scores over the ranks.
template <class Score>
bool reduces_ranks(Score const& score) {
  if constexpr (requires { score.reduces_ranks(); }) {
    return score.reduces_ranks();
  } else if constexpr (stage<Score>) {
    return reduces_ranks(inner_of(score));
  } else {
    return score.decides == granularity::lane;
  }
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
template <class Score, class Executor, class Bag>
void refuse_data([[maybe_unused]] Score const& score, [[maybe_unused]] Executor& exec, [[maybe_unused]] Bag const& in) {
  if constexpr (requires { score.refuse(exec, in); }) {
    score.refuse(exec, in);
  } else if constexpr (stage<Score>) {
    refuse_data(inner_of(score), exec, in);
  }
}

/// A scorer that may put entries first: `places()` says how many, and `rest_scores(in)` is the function of an entry by
/// which the others are ranked.
template <class Score>
concept puts_first = requires(Score const& score) {
  { score.places() } -> std::same_as<first_places>;
};

/// Calls visit(scorer) with the scorer that puts entries first: this one, or the one inside a stage.
template <class Score, class Visit>
void with_first_of(Score const& score, Visit const& visit) {
  if constexpr (erased<Score>) {
    if (score.puts_first()) visit(score);
  } else if constexpr (puts_first<Score>) {
    visit(score);
  } else if constexpr (stage<Score>) {
    with_first_of(inner_of(score), visit);
  }
}

/// Which lanes share the budget of a spec that does not say it, if the scorer has an opinion. See `pools`.
template <class Score>
constexpr std::optional<budget_scope> shares_of([[maybe_unused]] Score const& score) {
  if constexpr (erased<Score>) {
    return score.shares();
  } else if constexpr (requires { typename std::integral_constant<budget_scope, Score::pools>; }) {
    return Score::pools;
  } else if constexpr (stage<Score>) {
    return shares_of(inner_of(score));
  } else {
    return std::nullopt;
  }
}

/// When a scorer decides.
template <class Score>
constexpr phase phase_of([[maybe_unused]] Score const& score) {
  if constexpr (erased<Score>) {
    return score.when();
  } else if constexpr (requires { typename std::integral_constant<phase, Score::when>; }) {
    return Score::when;
  } else if constexpr (stage<Score>) {
    return phase_of(inner_of(score));
  } else {
    return phase::step;
  }
}

/// The signals by which the scorer's decisions find unobserved lanes.
template <class Score, class Bag>
constexpr auto observed_by(Score const& score, Bag const& in) {
  if constexpr (erased<Score>) {
    return score.observed(in);
  } else {
    return observed_of(score, in);
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
