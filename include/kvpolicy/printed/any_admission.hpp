// Admissions and selections by name: values that hold any of them that a spec can describe, and how they are read.
#pragma once

#include <kvpolicy/admission/admission.hpp>
#include <kvpolicy/printed/set_fields.hpp>
#include <kvpolicy/printed/spec_parts.hpp>
#include <kvpolicy/scorers/carried.hpp>
#include <kvpolicy/scorers/head_table.hpp>
#include <kvpolicy/scorers/page_gates.hpp>
#include <kvpolicy/scorers/quest.hpp>
#include <kvpolicy/scorers/write_gate.hpp>
#include <kvpolicy/selection/selection.hpp>
#include <map>
#include <variant>

namespace KVPOLICY_NAMESPACE {

/// Any admission that a spec can describe. It is a value like every policy. `visit` gives the typed admission, which
/// `make_state`, `decide`, `ingest` and `promote` accept.
struct any_admission {
  std::variant<write_gate, carried, head_table> score{};
  any_protection protect{};
  int window = 256;
  at_least pick{};
  int cap = -1;
  friend bool operator==(any_admission const&, any_admission const&) = default;

  any_admission() = default;
  template <class Score, class Protect>
  any_admission(admission<Score, Protect, at_least> const& from)
      : score(from.score), protect(from.protect), window(from.window), pick(from.pick), cap(from.cap) {}

  /// Calls visit(policy) with the admission of the scorer's own type, and returns what it returns.
  template <class Visit>
  decltype(auto) visit(Visit const& visit) const {
    return std::visit(
        [&](auto const& each) -> decltype(auto) { return visit(admission{each, protect, window, pick, cap}); }, score);
  }
  void check(char const* call) const {
    visit([&](auto const& policy) { policy.check(call); });
  }
};

/// Prints it as the typed admission: "write_gate | at_least(least=0.1, strict=false, unbounded=false) | window(256)".
[[nodiscard]] inline std::string print(any_admission const& policy) {
  return policy.visit([](auto const& each) { return to_string(each); });
}

/// Any selection that a spec can describe. `visit` gives the typed selection, which `make_state`, `make_plan` and
/// `select_pages` accept.
struct any_selection {
  std::variant<quest, page_gates> score{};
  any_budget budget{};
  int dense_layers = 2;
  friend bool operator==(any_selection const&, any_selection const&) = default;

  any_selection() = default;
  template <class Score, class Budget>
  any_selection(selection<Score, Budget> const& from)
      : score(from.score), budget(from.budget), dense_layers(from.dense_layers) {}

  /// Calls visit(policy) with the selection of the scorer's own type, and returns what it returns.
  template <class Visit>
  decltype(auto) visit(Visit const& visit) const {
    return std::visit([&](auto const& each) -> decltype(auto) { return visit(selection{each, budget, dense_layers}); },
                      score);
  }
  void check(char const* call) const {
    visit([&](auto const& policy) { policy.check(call); });
  }
};

/// Prints it as the typed selection: "quest(page=16, group=max, bounds=f32) | budget(512) | dense(2)".
[[nodiscard]] inline std::string print(any_selection const& policy) {
  return policy.visit([](auto const& each) { return to_string(each); });
}

namespace detail {

/// The argument of `window`, `cap` and `dense` in a spec.
struct count_argument {
  int tokens = 0;
  static constexpr auto fields() { return std::tuple{field{"tokens", &count_argument::tokens}}; }
};
struct layers_argument {
  int layers = 0;
  static constexpr auto fields() { return std::tuple{field{"layers", &layers_argument::layers}}; }
};

/// The argument of `head_table` in a spec.
struct table_argument {
  label table{};
  static constexpr auto fields() { return std::tuple{field{"table", &table_argument::table}}; }
};

/// Reads the scorer of a section: one of the alternatives of `Scores`.
template <class... Scores>
void read_scorer(spec_part const& from, std::variant<Scores...>& to, char const* section) {
  auto const one = [&]<class Score>(Score made) {
    if (from.name != Score::name) return false;
    if constexpr (std::same_as<Score, head_table>) {
      made.table = read_part<table_argument>(from).table;
    } else {
      made = read_part<Score>(from);
    }
    to = made;
    return true;
  };
  if ((one(Scores{}) || ...)) return;
  refuse_spec(from.column, from.name,
              accepted(std::string(section) + " begins with its scorer; there are", {Scores::name...}, from.name));
}

/// Reads an admission from the parts of its section.
inline any_admission read_admission(std::vector<spec_part> const& parts,
                                    std::map<std::string, by_lane<float const>> const& heads) {
  any_admission made;
  spec_part const& scorer = parts.front();
  read_scorer(scorer, made.score, "an admission");
  if (auto* const table = std::get_if<head_table>(&made.score); table != nullptr && *table->table.text != '\0') {
    auto const found = heads.find(table->table.text);
    if (found == heads.end()) {
      refuse_spec(scorer.column, to_string(table->table), "a table is given to the registry by its name");
    }
    table->heads = found->second;
  }
  made.pick.unbounded = scorer.name != write_gate::name;  // only gates lie between 0 and 1
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
      made.pick = read_part<at_least>(from, {.unbounded = made.pick.unbounded});
    } else if (from.name == "cap") {
      once(cap, from);
      made.cap = read_part<count_argument>(from, {made.cap}).tokens;
    } else if (!add_protection(made.protect, from)) {
      refuse_spec(from.column, from.name,
                  accepted("an admission has the parts",
                           {"at_least", "window", "cap", "sinks", "recent", "span", "safe", "everything"}, from.name));
    }
  }
  check_parsed(made, scorer.column);
  return made;
}

/// Reads a selection from the parts of its section.
inline any_selection read_selection(std::vector<spec_part> const& parts) {
  spec_part const& scorer = parts.front();
  any_selection made;
  read_scorer(scorer, made.score, "a selection");
  int budget = 0;
  int dense = 0;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    spec_part const& from = parts[i];
    if (from.name == "budget" || from.name == unlimited::name) {
      once(budget, from);
      made.budget = from.name == "budget" ? read_budget(from) : any_budget(read_part<unlimited>(from));
    } else if (from.name == "dense") {
      once(dense, from);
      made.dense_layers = read_part<layers_argument>(from, {made.dense_layers}).layers;
    } else {
      refuse_spec(from.column, from.name,
                  accepted("a selection has the parts", {"budget", "unlimited", "dense"}, from.name));
    }
  }
  if (made.budget.by != sharing::fixed) {
    refuse_spec(budget, to_string(made.budget.by), "every lane of a selection has the same budget");
  }
  check_parsed(made, budget != 0 ? budget : scorer.column);
  return made;
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
