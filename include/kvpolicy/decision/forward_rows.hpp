// SPDX-License-Identifier: Apache-2.0
// The rows of a forward that count: one rule for all recorders.
#pragma once

#include <kvpolicy/core/attention_probabilities.hpp>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/count_rows.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// The number under which a state keeps the rows of a signal that count; -1 for a signal that has no such rows.
template <class Signal>
inline constexpr int kind_of_rows = -1;
template <>
inline constexpr int kind_of_rows<queries> = 0;
template <>
inline constexpr int kind_of_rows<attention_probabilities> = 1;
template <>
inline constexpr int kind_of_rows<turn_queries> = 2;

/// Calls visit(signal) for each given signal whose rows are those of the current forward, if a state counts its rows
/// because a recorder reads them.
template <class Given, class State, class Visit>
void visit_forward_rows(Given const& in, State const& state, Visit const& visit) {
  auto const one = [&]<class Signal>(Signal const*) {
    if constexpr (provides<Given, Signal>) {
      Signal const* const found = in.template find<Signal>();
      if (found != nullptr && found->rows > 0 && state.counted().has(kind_of_rows<Signal>)) visit(*found);
    }
  };
  one(static_cast<queries const*>(nullptr));
  one(static_cast<attention_probabilities const*>(nullptr));
}

/// Refuses rows that the recorders have seen before: a sequence that pauses and shows its last rows again, or a new
/// request in a slot that still has the state of another one. The host must be able to read the positions.
template <class Given, class State>
void refuse_seen_rows(char const* call, Given const& in, State const& state) {
  int const* const slots = readable_slots(in.lanes, true);
  visit_forward_rows(in, state, [&]<class Rows>(Rows const& of) {
    for (int i = 0; i < in.lanes.size(); i += in.lanes.heads) {
      lane const one = in.lanes.at(i);
      int const first = first_counted_row(of, one);
      int const newest = state.history().newest(slot_of(slots, one.sequence), one.layer);
      expects(
          first < 0 || first > newest, call, [] { return std::string(Rows::name) + ".position"; },
          [&] { return std::to_string(first) + " in the first row of " + spell_slot_of(in.lanes, slots, one); },
          [&] {
            return "rows up to " + std::to_string(newest) +
                   " were observed: a row counts once (a sequence that pauses has position -1), and a new request " +
                   "begins with reset";
          });
    }
  });
}

/// Remembers up to which row each slot was observed, if the host can read the positions.
template <class Backend, class Given, class State>
void remember_rows([[maybe_unused]] Given const& in, [[maybe_unused]] State& state) {
  if constexpr (reads_on_host<Backend>) {
    int const* const slots = readable_slots(in.lanes, true);
    visit_forward_rows(in, state, [&](auto const& of) {
      for (int i = 0; i < in.lanes.size(); i += in.lanes.heads) {
        lane const one = in.lanes.at(i);
        int const newest = in.lanes.newest(one);  // rows after it are drafts: they do not count
        int const last = last_counted_row(of, one, newest);
        if (last >= 0) state.history().observe(slot_of(slots, one.sequence), one.layer, last);
      }
    });
  }
}

/// Calls visit(kind) for each kind of rows that a recorder reads.
template <class... Signals, class Visit>
void visit_kinds_of_rows(needs<Signals...>, [[maybe_unused]] Visit const& visit) {
  auto const one = [&]<class Signal>(Signal const*) {
    if constexpr (kind_of_rows<Signal> >= 0) visit(kind_of_rows<Signal>);
  };
  [[maybe_unused]] auto const each = [&]<class Signal>(Signal const* signal) {
    if constexpr (requires { typename Signal::options; }) {
      visit_kinds_of_rows(typename Signal::options{}, visit);
    } else {
      one(signal);
    }
  };
  (each(static_cast<Signals const*>(nullptr)), ...);
}

/// A call's signals without the rows that do not count: those at negative positions, and those of drafts. Every part of
/// a policy reads its signals through this class, so that the rule has one place.
template <class Given>
class counting_signals {
 public:
  /// Finds the rows that count, if there may be others. `in` and `memory` must outlive this object.
  template <executor Executor>
  counting_signals(char const* call, Executor& exec, Given const& in, row_counts<Executor>& memory)
      : call_(call), in_(in) {
    count(exec, memory, queries_);
    count(exec, memory, turn_);
    count(exec, memory, probabilities_);
  }
  counting_signals(counting_signals const&) = delete;
  counting_signals& operator=(counting_signals const&) = delete;

  [[nodiscard]] Given const& get() const { return in_; }

 private:
  template <executor Executor, class Rows>
  void count(Executor& exec, row_counts<Executor>& memory, Rows& copy) {
    if constexpr (provides<Given, Rows>) {
      Rows const* const given = in_.template find<Rows>();
      int const which = kind_of_rows<Rows>;
      if (given == nullptr || !memory.has(which)) return;
      // Verbs that know the lanes ignore drafts' rows themselves. A turn's rows are read for all lanes alike.
      row_positions const all{given->rows, given->position, given->valid_rows, std::same_as<Rows, turn_queries>};
      if (!may_skip<typename Executor::backend>(*given, all, memory.bound())) return;
      auto const [index, number] = memory.rows(which);
      counted_rows const to{index, number};
      ops::count_rows(exec, in_.lanes, all, to);
      copy = *given;
      copy.counted = {to.index.data, to.index.sequence, 0, 0};
      copy.valid_rows = {to.number.data, to.number.sequence, 0, 0};
      in_.replace(copy);
    }
  }

  /// True if some rows may not count. The host looks; a device counts always.
  template <class Backend, class Rows>
  [[nodiscard]] bool may_skip(Rows const& of, row_positions const& all, int most) const {
    if (of.rows == 0 || of.position.data == nullptr || of.counted.data != nullptr) return false;
    if constexpr (requires { of.first_row.data; }) {
      if (of.first_row.data != nullptr) return false;
    }
    bool found = !reads_on_host<Backend>;
    for (int s = in_.lanes.sequence_begin; !found && s < in_.lanes.sequence_end(); ++s) {
      lane const one{s, in_.lanes.layer_begin, 0};
      int const end = all.end(in_.lanes, one);
      for (int r = 0; r < of.valid(one) && !found; ++r) {
        found = of.position.row(one)[r] < 0 || of.position.row(one)[r] >= end;
      }
    }
    bool const fits = of.rows <= most;
    expects(fits || !found || !reads_on_host<Backend>, call_, Rows::name, of.rows,
            [&] { return "rows that do not count are found among at most " + std::to_string(most); });
    return found && fits;
  }

  char const* call_;
  Given in_;
  queries queries_{};
  turn_queries turn_{};
  attention_probabilities probabilities_{};
};

}  // namespace KVPOLICY_NAMESPACE::detail
