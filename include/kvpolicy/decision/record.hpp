// SPDX-License-Identifier: Apache-2.0
// Functions of all decisions for the recorders of a scorer: they make a state and pass signals to the recorders.
#pragma once

#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/decision/forward_rows.hpp>
#include <kvpolicy/recorders/recorder_hooks.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>
#include <tuple>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// Refuses a state that was made for another policy: its columns must be exactly those of these recorders, but for
/// those of appliers.
template <class State, class... Recorders>
void check_state(char const* call, State const& state, std::tuple<Recorders...> const& recorders) {
  std::size_t at = 0;
  bool same = true;
  auto const one = [&](auto const& recorder) {
    for (column const& each : recorder.columns(state.model(), state.lanes().capacity)) {
      same = same && at < state.columns().size() && state.columns()[at].about == each;
      ++at;
    }
  };
  std::apply([&](auto const&... each) { (one(each), ...); }, recorders);
  expects(same && at == state.recorder_columns(), call, "state", "another policy's",
          "make_state makes it for the policy that observes and decides");
}

/// Calls visit(kind) for each kind of rows that a recorder reads. Erased recorders say it themselves.
template <class Recorder, class Visit>
void visit_kinds_of_rows_of([[maybe_unused]] Recorder const& keeps, Visit const& visit) {
  if constexpr (requires { keeps.visit_kinds_of_rows(visit); }) {
    keeps.visit_kinds_of_rows(visit);
  } else {
    visit_kinds_of_rows(typename Recorder::needs{}, visit);
  }
}

/// Calls visit(kind) for each kind of rows that a scorer reads.
template <class Score, class Visit>
void visit_kinds_of_rows_of_scorer([[maybe_unused]] Score const& score, Visit const& visit) {
  if constexpr (erased<Score>) {
    score.visit_kinds_of_rows(visit);
  } else {
    visit_kinds_of_rows(typename Score::needs{}, visit);
  }
}

/// Makes the state of a batch: the columns of these recorders, in their order. `slack`: see `state`.
template <executor Executor, class... Recorders>
state<Executor> state_of(Executor& exec, std::tuple<Recorders...> const& recorders, cache const& in, int slack = 0) {
  state<Executor> made(exec, in.shape, in.lanes, slack);
  if constexpr ((fits<forgetting_hooks<Recorders, Executor>>() && ...)) {
    std::apply([&](auto const&... each) { (made.add(each), ...); }, recorders);
  }
  auto const count = [&](int kind) { made.counted().add(exec, kind, in.lanes.sequences, in.lanes.capacity); };
  std::apply([&](auto const&... each) { (visit_kinds_of_rows_of(each, count), ...); }, recorders);
  return made;
}

/// Calls `check_rows` of the signals that these recorders read and the engine gives, if the host can read them. Erased
/// recorders also refuse signals that are missing.
template <class Backend, class... Recorders, class Given>
void refuse_recorded_rows(std::tuple<Recorders...> const& recorders, [[maybe_unused]] char const* call,
                          [[maybe_unused]] Given const& in) {
  [[maybe_unused]] auto const one = [&]<class Recorder>(Recorder const& keeps) {
    if constexpr (requires { keeps.refuse(call, in); }) {
      keeps.refuse(call, in);
    } else {
      static_cast<void>(keeps);
      refuse_rows<Backend>(call, typename Recorder::needs{}, in);
    }
  };
  std::apply([&](auto const&... each) { (one(each), ...); }, recorders);
  refuse_smaller<Backend>(call, in);
}

/// Refuses signals of a part of a dual cache from which a recorder cannot compute what the whole cache says.
template <class Recorder, class Given>
void refuse_part_of([[maybe_unused]] char const* call, [[maybe_unused]] Recorder const& keeps,
                    [[maybe_unused]] Given const& in) {
  if constexpr (requires { keeps.refuse_part(call, in); }) keeps.refuse_part(call, in);
}

/// The name of a column with an element of each entry, if the recorder does not say that it keeps such
/// (`known_at_append` or `of_entries`); otherwise empty.
template <class Recorder>
std::string undeclared_column([[maybe_unused]] Recorder const& keeps, [[maybe_unused]] shape const& model) {
  if constexpr (!known_at_append<Recorder> && !of_entries<Recorder>) {
    for (column const& each : keeps.columns(model, 1)) {
      if (each.extent == column_extent::lane_entry) return each.name;
    }
  }
  return {};
}

/// Calls `observe` of the recorders [At, End) of a tuple, whose columns are in `state` in the tuple's order. It skips a
/// recorder whose signals, known only at run time, are not given; the caller has checked that they may be missing.
template <std::size_t At, std::size_t End, executor Executor, class... Recorders, class Given>
void record_some(Executor& exec, std::tuple<Recorders...> const& recorders, Given const& in, state<Executor>& state) {
  std::size_t first = 0;
  auto const one = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) {
    using recorder_type = std::tuple_element_t<I, std::tuple<Recorders...>>;
    auto const& keeps = std::get<I>(recorders);
    if constexpr (I >= At) {
      if constexpr (signals_complete<recorder_type, Given>(typename recorder_type::needs{})) {
        if (in.has_all(typename recorder_type::needs{})) keeps.observe(exec, in, state.columns_from(first, in.lanes));
      }
    }
    first += keeps.columns(state.model(), state.lanes().capacity).size();
  };
  if constexpr ((fits<observing_hooks<Recorders, Executor, Given>>() && ...)) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (one(std::integral_constant<std::size_t, I>{}), ...);
    }(std::make_index_sequence<End>{});
  }
}

/// Calls `observe` of all recorders of a tuple.
template <executor Executor, class... Recorders, class Given>
void record(Executor& exec, std::tuple<Recorders...> const& recorders, Given const& in, state<Executor>& state) {
  record_some<0, sizeof...(Recorders)>(exec, recorders, in, state);
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
