// SPDX-License-Identifier: Apache-2.0
// Admissions and selections whose parts are chosen at run time, and how they are read.
#pragma once

#include <kvpolicy/admission/admission.hpp>
#include <kvpolicy/by_name/any_scorer.hpp>
#include <kvpolicy/by_name/spec_parts.hpp>
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/ops/host/top_k.hpp>
#include <kvpolicy/scorers/write_gate.hpp>
#include <kvpolicy/selection/select.hpp>

namespace KVPOLICY_NAMESPACE {

/// Any admission that a spec can describe: an `admission` of erased parts, for one kind of executor. `make_state`,
/// `decide`, `ingest`, `promote` and `step` take it as they take a typed one.
template <executor Executor>
struct basic_any_admission : admission<basic_any_scorer<Executor>, any_protection, any_threshold> {
  using parts = admission<basic_any_scorer<Executor>, any_protection, any_threshold>;

  basic_any_admission() : basic_any_admission(basic_any_scorer<Executor>(write_gate{})) {}
  explicit basic_any_admission(basic_any_scorer<Executor> const& scorer) : parts{.score = scorer} {}
  template <scorer Score, class Protect, class Pick>
    requires std::constructible_from<any_protection, Protect> && std::constructible_from<any_threshold, Pick>
  basic_any_admission(admission<Score, Protect, Pick> const& from)
      : parts{basic_any_scorer<Executor>(from.score), any_protection(from.protect), from.window, from.pick, from.cap} {}

  friend bool operator==(basic_any_admission const& a, basic_any_admission const& b) {
    return static_cast<parts const&>(a) == static_cast<parts const&>(b);
  }
  /// "write_gate | at_least(least=0.1, strict=false, unbounded=false) | window(256)"
  friend std::string print(basic_any_admission const& policy) { return to_string(static_cast<parts const&>(policy)); }
};

/// Such an admission for the host.
using any_admission = basic_any_admission<host_executor>;

/// Any selection that a spec can describe, likewise. `make_state`, `make_plan`, `observe` and `select_pages` take it.
template <executor Executor>
struct basic_any_selection : selection<basic_any_page_scorer<Executor>, any_budget, any_protection, any_pick> {
  using parts = selection<basic_any_page_scorer<Executor>, any_budget, any_protection, any_pick>;

  basic_any_selection() = default;
  explicit basic_any_selection(basic_any_page_scorer<Executor> const& scorer) : parts{.score = scorer} {}
  template <page_scorer Score, class Budget, class Protect, class Pick>
    requires std::constructible_from<any_budget, Budget> && std::constructible_from<any_protection, Protect>
  basic_any_selection(selection<Score, Budget, Protect, Pick> const& from)
      : parts{basic_any_page_scorer<Executor>(from.score),
              any_budget(from.budget),
              from.dense_layers,
              any_protection(from.protect),
              from.pick,
              from.inherit} {}

  friend bool operator==(basic_any_selection const& a, basic_any_selection const& b) {
    return static_cast<parts const&>(a) == static_cast<parts const&>(b);
  }
  /// "quest(page=16, group=max, bounds=f32) | budget(512) | dense(2)"
  friend std::string print(basic_any_selection const& policy) { return to_string(static_cast<parts const&>(policy)); }
};

/// Such a selection for the host.
using any_selection = basic_any_selection<host_executor>;

/// Observes the entries of a window with signals that are found by name.
///
/// - throws: also `invalid_argument` that names the signal, if a signal that a recorder needs is not given.
template <executor Executor>
void observe(Executor& exec, basic_any_admission<Executor> const& policy, any_signals const& in,
             state<Executor>& state) {
  detail::observe_given(exec, policy, in, state);
}
/// Decides about them with signals that are found by name.
///
/// - throws: also `invalid_argument` that names the signal, if a signal that the scorer needs is not given.
template <executor Executor>
void decide(Executor& exec, basic_any_admission<Executor> const& policy, any_signals const& in,
            state<Executor> const& state, plan<Executor>& into) {
  detail::decide_given(exec, policy, in, state, into);
}
/// Observes a step with signals that are found by name, for a selection.
///
/// - throws: as for an admission.
template <executor Executor>
void observe(Executor& exec, basic_any_selection<Executor> const& policy, any_signals const& in,
             state<Executor>& state) {
  detail::observe_given(exec, policy, in, state);
}
/// Chooses the pages that lanes read, with signals that are found by name.
///
/// - throws: as for an admission.
template <executor Executor>
void select_pages(Executor& exec, basic_any_selection<Executor> const& policy, any_signals const& in,
                  state<Executor> const& state, selection_plan<Executor>& into) {
  detail::select_given(exec, policy, in, state, into);
}

namespace detail {

/// The argument of `window` and `cap` in a spec, of `dense`, and of `inherit`.
struct count_argument {
  int tokens = 0;
  static constexpr auto fields() { return make_fields(field{"tokens", &count_argument::tokens}); }
};
struct layers_argument {
  int layers = 0;
  static constexpr auto fields() { return make_fields(field{"layers", &layers_argument::layers}); }
};
struct inherit_argument {
  int layers = 1;
  static constexpr auto fields() { return make_fields(field{"layers", &inherit_argument::layers}); }
  void check(char const* call) const { check_inherit(call, layers); }
};

/// The admission by a scorer alone.
template <executor Executor>
basic_any_admission<Executor> admission_by(basic_any_scorer<Executor> const& score, spec_part const& scorer) {
  basic_any_admission<Executor> made(score);
  if (score.facts().ranks_candidates)
    refuse_spec(scorer.column, scorer.name, "it ranks entries, and an admission asks about each alone");
  if (score.facts().block > 0)
    refuse_spec(scorer.column, scorer.name, "it is of blocks, and an admission asks about each entry alone");
  made.pick.fixed.unbounded = scorer.name != write_gate::name;  // only gates lie between 0 and 1
  return made;
}

/// Reads the other parts of a section into an admission. If it is of a system, parts that the system has itself are
/// refused, unless they say the same.
template <executor Executor>
basic_any_admission<Executor> read_admission(std::vector<spec_part> const& parts, basic_any_admission<Executor> made,
                                             known_parts const& known, bool is_system = false) {
  basic_any_admission<Executor> const own = made;
  spec_part const& first = parts.front();
  check_parsed(made, first.column);
  int window = 0;
  int pick = 0;
  int cap = 0;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    spec_part const& from = parts[i];
    if (from.name == "window") {
      once(window, from);
      made.window = read_part<count_argument>(from, {made.window}).tokens;
    } else if (from.name == at_least::name) {
      once(pick, from);
      made.pick = read_part<at_least>(from, {.unbounded = made.pick.fixed.unbounded});
    } else if (from.name == at_least_table::name) {
      once(pick, from);
      made.pick = read_thresholds(from, known);
    } else if (from.name == "cap") {
      once(cap, from);
      made.cap = read_part<count_argument>(from, {made.cap}).tokens;
    } else if (!add_protection(made.protect, from, known)) {
      std::vector<std::string> names{"at_least", "at_least_table", "window",     "cap",    "sinks", "recent",
                                     "span",     "safe",           "everything", "prompt", "marks"};
      for (auto const& each : known.protections) names.push_back(each.first);
      refuse_spec(from.column, from.name, accepted("an admission has the parts", names, from.name));
    }
    bool const caps = own.cap >= 0 && made.cap != own.cap;
    bool const replaces = made.window != own.window || !(made.pick == own.pick) || caps;
    if (is_system && replaces) refuse_spec(from.column, from.name, std::string(first.name) + " has one of its own");
    check_parsed(made, from.column);
  }
  return made;
}

/// Makes a part `page(size)` the field `page` of the scorer.
inline void move_page(std::vector<spec_part>& parts) {
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].name != "page" || parts[i].arguments.size() != 1) continue;
    spec_argument size = parts[i].arguments.front();
    if (!size.name.empty() && size.name != "size") refuse_spec(size.name_column, size.name, "page has the field size");
    for (spec_argument const& each : parts.front().arguments) {
      if (each.name == "page") refuse_twice(parts[i].column, "page", each.name_column);
    }
    size.name = "page";
    size.name_column = parts[i].column;
    parts.front().arguments.push_back(size);
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
}

inline void check_selection_budget(any_budget const& limit, spec_part const& from) {
  if (limit.by != sharing::fixed) {
    spec_argument const& by = *budget_argument(from, "by");
    refuse_spec(by.value_column, by.value, "every lane of a selection has the same budget");
  }
  if (limit.block > 0) {
    spec_argument const& block = *budget_argument(from, "block");
    refuse_spec(block.name_column, block.name, "a selection reads pages: page(size) says how large they are");
  }
}

inline void refuse_selection_part(spec_part const& from, known_parts const& known) {
  std::vector<std::string> names{"page", "budget",   "unlimited",      "dense",  "inherit",
                                 "top",  "at_least", "at_least_table", "sinks",  "recent",
                                 "span", "safe",     "everything",     "prompt", "marks"};
  for (auto const& each : known.budgets) names.push_back(each.first);
  for (auto const& each : known.picks) names.push_back(each.first);
  refuse_spec(from.column, from.name, accepted("a selection has the parts", names, from.name));
}

/// Reads a pick of pages, and is false if the part is none.
inline bool read_page_pick(any_pick& pick, spec_part const& from, known_parts const& known) {
  if (from.name == top::name) {
    pick = read_part<top>(from);
  } else if (from.name == at_least::name) {
    pick = read_part<at_least>(from, {.unbounded = true});
  } else if (from.name == at_least_table::name) {
    pick = read_thresholds(from, known);
  } else {
    return read_own(known.picks, from, pick);
  }
  return true;
}

/// Reads a selection by a scorer from the parts of its section.
template <executor Executor>
basic_any_selection<Executor> read_selection(std::vector<spec_part> const& parts,
                                             basic_any_page_scorer<Executor> const& score, known_parts const& known) {
  basic_any_selection<Executor> made(score);
  known_parts shipped_only;  // pages are chosen without protections of a program's own
  shipped_only.prompt_end = known.prompt_end;
  shipped_only.token_class = known.token_class;
  spec_part const* budget = nullptr;
  spec_part const* pick = nullptr;
  int dense = 0;
  int inherit = 0;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    spec_part const& from = parts[i];
    if (read_limit(made.budget, from, known)) {
      once(budget, from);
      check_selection_budget(made.budget, from);
    } else if (from.name == "dense") {
      once(dense, from);
      made.dense_layers = read_part<layers_argument>(from, {made.dense_layers}).layers;
    } else if (from.name == "inherit") {
      once(inherit, from);
      made.inherit = read_part<inherit_argument>(from).layers;
    } else if (read_page_pick(made.pick, from, known)) {
      once(pick, from);
    } else if (!add_protection(made.protect, from, shipped_only)) {
      refuse_selection_part(from, known);
    }
    check_parsed(made, from.column);
  }
  if (pick == nullptr || pick->name == top::name) return made;
  if (budget != nullptr && made.budget.of != any_budget::amount::unlimited) {
    refuse_spec(budget->column, budget->name, std::string(pick->name) + " reads however many pages there are");
  }
  made.budget = unlimited{};
  return made;
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
