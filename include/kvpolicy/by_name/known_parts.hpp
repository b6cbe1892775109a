// SPDX-License-Identifier: Apache-2.0
// The parts of specs that a program added to a registry, and how the fields of a part are read.
#pragma once

#include <functional>
#include <kvpolicy/by_name/any_budget.hpp>
#include <kvpolicy/by_name/any_pick.hpp>
#include <kvpolicy/by_name/any_protection.hpp>
#include <kvpolicy/by_name/named_tables.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE::detail {

/// Lets errors about a part that a system adds name the system, and of its arguments those that a user wrote.
inline void say_of_system(spec_part& added, spec_part const& system) {
  added.name = system.name;
  added.column = system.column;
  for (spec_argument& each : added.arguments) {
    each.name_column = each.value_column = system.column;
    for (spec_argument const& said : system.arguments) {
      if (said.value == each.value) each.name_column = each.value_column = said.value_column;
    }
  }
}

template <class T>
T read_part(spec_part const& from, T made = {}) {
  set_fields(made, from);
  check_parsed(made, from.column);
  return made;
}

/// Parts of one kind that a program added, by their names, and how each is made.
template <class Any>
using parts_of_program = std::vector<std::pair<std::string, std::function<Any(spec_part const&)>>>;

/// An allotter that a registry knows: `by=NAME` of a budget, whose arguments set its fields, too.
struct known_allotter {
  using tables = std::map<std::string, by_lane<float const>>;
  std::string name;
  std::vector<std::string> fields;
  std::function<any_allotter(spec_part const&, tables const& heads)> make;
};

/// The parts of specs, beside scorers, that a registry knows: names of stages, parts of a program's own, and tables.
struct known_parts {
  std::vector<std::string> stages{"frozen"};
  parts_of_program<any_protection> protections;
  parts_of_program<any_budget> budgets;
  std::vector<known_allotter> allotters;
  parts_of_program<any_pick> picks;
  parts_of_program<any_trigger> triggers;
  std::map<std::string, by_lane<float const>> heads;  ///< tables of numbers of heads, by their names
  by_lane<int const> prompt_end{};                    ///< the table of that name, which `prompt` reads
  by_lane<int const> token_class{};                   ///< the table of that name, which `marks` reads

  /// The allotter of a name, or null.
  [[nodiscard]] known_allotter const* allotter_of(std::string_view name) const {
    for (known_allotter const& each : allotters) {
      if (each.name == name) return &each;
    }
    return nullptr;
  }
  /// Calls visit(list) for the parts of each kind that a program added.
  template <class Visit>
  void for_each_list(Visit const& visit) const {
    visit(protections);
    visit(budgets);
    visit(picks);
    visit(triggers);
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all = stages;
    for_each_list([&](auto const& list) {
      for (auto const& each : list) all.push_back(each.first);
    });
    return all;
  }
};

/// Reads a part of a program's own. False if the list has no such part.
template <class Any>
bool read_own(parts_of_program<Any> const& list, spec_part const& from, Any& to) {
  for (auto const& [name, make] : list) {
    if (name != from.name) continue;
    to = make(from);
    return true;
  }
  return false;
}

}  // namespace KVPOLICY_NAMESPACE::detail
