// SPDX-License-Identifier: Apache-2.0
// Scorers and systems that read a table of a model, which one of their fields names.
#pragma once

#include <concepts>
#include <kvpolicy/by_name/spec.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/label.hpp>
#include <kvpolicy/parts/model_tables.hpp>
#include <map>
#include <string>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// The argument of a scorer without fields that reads a table.
struct table_argument {
  label table{};
  static constexpr auto fields() { return make_fields(field{"table", &table_argument::table}); }
};

/// A scorer that reads a table of a model: a row of each head, or a number of it.
template <class Score>
concept reads_rows = requires(Score score, rows_of_heads rows) { score.use_table(rows); };
template <class Score>
concept reads_a_table =
    reads_rows<Score> || requires(Score score, by_lane<float const> numbers) { score.use_table(numbers); };

/// Calls visit(scorer) with a scorer, or with that of a system, and returns what it returns.
template <class Part, class Visit>
auto with_scorer_of(Part const& of, Visit const& visit) {
  if constexpr (requires { of.with_scorer(visit); }) {
    return of.with_scorer(visit);
  } else if constexpr (requires { of.scorer(); }) {
    return visit(of.scorer());
  } else {
    return visit(of);
  }
}
/// The type of a scorer, or of that which a system has by default.
template <class Part>
constexpr auto usual_scorer(Part const& of) {
  if constexpr (requires { of.scorer(); }) {
    return of.scorer();
  } else {
    return of;
  }
}
template <class Part>
using scorer_inside = decltype(usual_scorer(std::declval<Part const&>()));

/// The name of the field that names such a table, which is the member `table`.
template <class Score>
std::string table_field() {
  std::string found = "table";
  auto const look = [&](auto const& each) {
    if constexpr (std::same_as<decltype(each.member), label Score::*>) {
      if (each.member == &Score::table) found = each.name;
    }
  };
  with_fields<Score>([&](auto const&... each) { (look(each), ...); });
  return found;
}

/// The table of a name, which an argument of a part says, or the part by itself.
template <class Table>
Table find_table(std::map<std::string, Table> const& among, label const& name, spec_part const& from,
                 spec_argument const* said) {
  auto const found = among.find(to_string(name));
  if (found != among.end()) return found->second;
  constexpr char const* rule = "a table is given to the registry by its name";
  if (name == label{}) refuse_spec(from.column, from.name, "it says which table of the registry it reads");
  if (said != nullptr) refuse_spec(said->value_column, said->value, rule);
  refuse_spec(from.column, from.name, "its table is " + to_string(name) + ", and " + rule);
}

/// Gives a scorer that may have a sketch of keys the table of that name, if there is one.
template <class Score>
void give_sketch([[maybe_unused]] Score& to, [[maybe_unused]] std::map<std::string, rows_of_heads> const& tables) {
  if constexpr (requires { to.use_sketch(rows_of_heads{}); }) {
    if (auto const found = tables.find("sketch"); found != tables.end()) to.use_sketch(found->second);
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
