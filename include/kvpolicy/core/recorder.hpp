// SPDX-License-Identifier: Apache-2.0
// The concept of a recorder: a part of a scorer that keeps a signal across steps.
#pragma once

#include <concepts>
#include <cstddef>
#include <kvpolicy/core/columns.hpp>
#include <kvpolicy/core/contract/hook_checks.hpp>
#include <tuple>

namespace KVPOLICY_NAMESPACE {

/// A recorder keeps a signal across steps. Its members are:
///
/// - `needs`: the signals that it reads; `provides`: the signal that it provides.
/// - `columns(model, bound)`: the columns that it keeps. `view(columns)` returns the signal that they hold.
/// - `observe(exec, in, columns) const` writes the columns.
/// - optional: `forget(exec, lanes, columns, sequence, position)`, called when a sequence is rolled back to a position.
/// - optional: `known_at_append = true` if its values are known when an entry is appended. The window of an admission
///   then records them, so that they move into the pages with an admitted entry.
/// - optional: `of_entries = true` if all of its columns have one element an entry (`column_extent::lane_entry`), which
///   later forwards may change. Both parts of a dual cache then record, and a number moves into the pages with its
///   entry.
/// - optional: `refuse_part(call, in) const`, called before it observes one of these parts: refuses signals from which
///   what the whole cache says cannot be computed.
template <class R>
concept recorder = std::regular<R> && requires(R const& r, shape const& model, recorded_columns const& recorded) {
  typename R::needs;
  typename R::provides;
  { r.columns(model, 1).size() } -> std::convertible_to<std::size_t>;
  { r.view(recorded) } -> std::same_as<typename R::provides>;
};

namespace detail {

template <class Recorder>
inline constexpr bool known_at_append = [] {
  if constexpr (requires { Recorder::known_at_append; }) {
    return Recorder::known_at_append;
  } else {
    return false;
  }
}();

template <class Recorder>
inline constexpr bool of_entries = [] {
  if constexpr (requires { Recorder::of_entries; }) {
    return Recorder::of_entries;
  } else {
    return false;
  }
}();

/// Checks the form of `forget`, once the executor is known.
template <class R, class Executor>
using forgetting_hooks =
    hooks<R, optional_hook<hook::recorder_forget, form_of_call<hook::recorder_forget, R, anything, Executor&,
                                                               lanes const&, recorded_columns const&, int, int>()>>;

}  // namespace detail

namespace detail {

template <class S>
concept holds_wrapped = requires(S const& around) {
  { around.score_of } -> std::same_as<typename S::wraps const&>;
};

/// A scorer around another one, of the type `wraps`: a stage, which holds it as its member `score_of`, or
/// `with_recorders`, which derives from it. What such a scorer does not say itself is what the scorer inside says:
/// recorders, forced entries, triggers, places, checks of signals, scratch.
template <class S>
concept stage = requires { typename S::wraps; } && (holds_wrapped<S> || std::derived_from<S, typename S::wraps>);

/// The scorer inside a stage.
template <stage Stage>
constexpr typename Stage::wraps const& inner_of(Stage const& around) {
  if constexpr (holds_wrapped<Stage>) {
    return around.score_of;
  } else {
    return around;
  }
}

/// What `ask` returns if no scorer answers.
struct no_answer {};

/// Asks a scorer, or else the one inside a stage: calls `question` with the outermost one that it can be called with,
/// and returns what it returns. Returns `otherwise` if there is none. A lambda says by its return type with which
/// scorers it can be called: nvcc drops a lambda's constraints.
template <class Score, class Question, class Otherwise = no_answer>
constexpr auto ask(Score const& score, Question const& question, [[maybe_unused]] Otherwise const& otherwise = {}) {
  if constexpr (std::invocable<Question const&, Score const&>) {
    return question(score);
  } else if constexpr (stage<Score>) {
    return ask(inner_of(score), question, otherwise);
  } else {
    return otherwise;
  }
}

}  // namespace detail

/// Prints a stage that has a name and fields after the scorer inside: "knorm | blocks(size=20)".
template <class Stage>
  requires(detail::holds_wrapped<Stage> && described<Stage>)
[[nodiscard]] std::string print(Stage const& of) {
  return to_string(of.score_of) + " | " + detail::print_described(of);
}

/// The recorders of a scorer: the tuple that its `recorders()` returns, or an empty one. Those of a stage are those of
/// the scorer inside.
template <class Scorer>
[[nodiscard]] constexpr auto recorders_of(Scorer const& score) {
  constexpr auto question = [](auto const& one) -> decltype(one.recorders()) { return one.recorders(); };
  return detail::ask(score, question, std::tuple<>{});
}

}  // namespace KVPOLICY_NAMESPACE
