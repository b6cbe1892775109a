// SPDX-License-Identifier: Apache-2.0
// The recorders of pages that the window of an admission has as well, and what both parts observe.
#pragma once

#include <kvpolicy/decision/record.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/scorers/with_recorders.hpp>
#include <string>
#include <tuple>

namespace KVPOLICY_NAMESPACE::detail {

/// Erased recorders say at run time what each of them records.
template <class Recorder>
concept erased_recorder = requires(Recorder const& keeps) { keeps.all_known_at_append(); };

/// A recorder of numbers of entries that forwards change, in the window of an admission. It observes the forwards of
/// the dual cache only (`observe_part`): the entries of a chunk outside of the cache start with nothing.
template <class Recorder>
struct in_window {
  Recorder of{};

  using needs = kvpolicy::needs<>;
  using provides = typename Recorder::provides;
  using verbs = decltype(verbs_of<Recorder>());

  [[nodiscard]] auto columns(shape const& model, int bound) const { return of.columns(model, bound); }
  [[nodiscard]] provides view(recorded_columns const& recorded) const { return of.view(recorded); }
  void observe(auto&, auto const&, recorded_columns const&) const {}
  /// Observes a forward of the dual cache.
  void observe_part(auto& exec, auto const& in, recorded_columns const& recorded) const {
    of.observe(exec, in, recorded);
  }
  template <class Visit>
  void visit_kinds_of_rows(Visit const& visit) const {
    visit_kinds_of_rows_of(of, visit);
  }
  void forget([[maybe_unused]] auto& exec, [[maybe_unused]] lanes const& batch,
              [[maybe_unused]] recorded_columns const& recorded, [[maybe_unused]] int sequence,
              [[maybe_unused]] int position) const {
    if constexpr (requires { of.forget(exec, batch, recorded, sequence, position); }) {
      of.forget(exec, batch, recorded, sequence, position);
    }
  }
  friend bool operator==(in_window const&, in_window const&) = default;
};

/// The recorders of pages that the window has as well: those of values known when an entry is appended, and
/// those of numbers of entries.
/// Erased recorders say which of them.
template <class... Recorders>
constexpr auto recorders_in_window(std::tuple<Recorders...> const& all) {
  auto const one = []<class Recorder>(Recorder const& each) {
    if constexpr (erased_recorder<Recorder>) {
      return std::tuple{each.in_window()};
    } else if constexpr (known_at_append<Recorder>) {
      return std::tuple{each};
    } else if constexpr (of_entries<Recorder>) {
      return std::tuple{in_window<Recorder>{each}};
    } else {
      return std::tuple<>{};
    }
  };
  return std::apply([&](auto const&... each) { return std::tuple_cat(one(each)...); }, all);
}

/// True if a recorder of pages has to observe forwards: its values are not known when an entry is appended.
template <class Recorder>
bool observes_forwards([[maybe_unused]] Recorder const& keeps) {
  if constexpr (erased_recorder<Recorder>) {
    return !keeps.all_known_at_append();
  } else {
    return !known_at_append<Recorder>;
  }
}

/// True if a recorder keeps what belongs to no entry and follows from every forward, such as the last query rows.
template <class Recorder>
bool keeps_rows([[maybe_unused]] Recorder const& keeps) {
  if constexpr (erased_recorder<Recorder>) {
    return keeps.keeps_rows();
  } else {
    return !known_at_append<Recorder> && !of_entries<Recorder>;
  }
}

/// The name of a recorder that keeps numbers of entries without saying so, which the window would not record; empty if
/// there is none.
template <class Recorder>
std::string undeclared_column_of([[maybe_unused]] Recorder const& keeps, [[maybe_unused]] shape const& model) {
  if constexpr (erased_recorder<Recorder>) {
    return keeps.undeclared(model);
  } else {
    return undeclared_column(keeps, model);
  }
}

/// Calls visit(recorder, columns) for the recorders [At, End) of a tuple that observe a part of a dual cache, with
/// their columns in `state`, which are in the tuple's order.
template <std::size_t At, std::size_t End, class... Recorders, class State, class Visit>
void for_each_of_part(std::tuple<Recorders...> const& all, lanes const& batch, State const& state, Visit const& visit) {
  std::size_t first = 0;
  auto const one = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) {
    auto const& keeps = std::get<I>(all);
    if constexpr (I >= At) visit(keeps, state.columns_from(first, batch));
    first += keeps.columns(state.model(), state.lanes().capacity).size();
  };
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (one(std::integral_constant<std::size_t, I>{}), ...);
  }(std::make_index_sequence<End>{});
}

/// Refuses signals of the pages from which a recorder of pages cannot record.
template <class Backend, class Recorder, class Given>
void refuse_pages(char const* call, [[maybe_unused]] Recorder const& keeps, [[maybe_unused]] Given const& in) {
  if constexpr (erased_recorder<Recorder>) {
    keeps.refuse_part(call, in);
  } else if constexpr (!known_at_append<Recorder>) {
    refuse_rows<Backend>(call, typename Recorder::needs{}, in);
    refuse_part_of(call, keeps, in);
  }
}

/// The same of the window, for a recorder of the window.
template <class Backend, class Recorder, class Given>
void refuse_window([[maybe_unused]] char const* call, [[maybe_unused]] Recorder const& keeps,
                   [[maybe_unused]] Given const& in) {
  if constexpr (erased_recorder<Recorder>) {
    keeps.refuse_part(call, in);
  } else if constexpr (requires { keeps.of; }) {
    refuse_pages<Backend>(call, keeps.of, in);
  }
}

/// Lets a recorder of pages observe the pages.
template <class Executor, class Recorder, class Given>
void observe_pages(Executor& exec, Recorder const& keeps, Given const& in, recorded_columns const& recorded) {
  if constexpr (erased_recorder<Recorder>) {
    keeps.observe_part(exec, in, recorded);
  } else if constexpr (!known_at_append<Recorder>) {
    if constexpr (signals_complete<Recorder, Given>(typename Recorder::needs{})) keeps.observe(exec, in, recorded);
  }
}

/// Lets a recorder of the window observe what changes the numbers of its entries.
template <class Executor, class Recorder, class Given>
void observe_window([[maybe_unused]] Executor& exec, [[maybe_unused]] Recorder const& keeps,
                    [[maybe_unused]] Given const& in, [[maybe_unused]] recorded_columns const& recorded) {
  if constexpr (erased_recorder<Recorder>) {
    keeps.observe_part(exec, in, recorded);
  } else if constexpr (requires { keeps.of; }) {
    using inner = std::remove_cvref_t<decltype(keeps.of)>;
    if constexpr (signals_complete<inner, Given>(typename inner::needs{})) keeps.observe_part(exec, in, recorded);
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
