// SPDX-License-Identifier: Apache-2.0
// Scorers and systems that read a table of a model, which one of their fields names.
#pragma once

#include <concepts>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/label.hpp>
#include <kvpolicy/parts/model_tables.hpp>
#include <map>
#include <string>

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

/// Gives a scorer that may have a sketch of keys the table of that name, if there is one.
template <class Score>
void give_sketch([[maybe_unused]] Score& to, [[maybe_unused]] std::map<std::string, rows_of_heads> const& tables) {
  if constexpr (requires { to.use_sketch(rows_of_heads{}); }) {
    if (auto const found = tables.find("sketch"); found != tables.end()) to.use_sketch(found->second);
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
