// SPDX-License-Identifier: Apache-2.0
// Scores that depend only on the head: DuoAttention's retrieval heads, or 0 for every head.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/label.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// Scores every entry of a lane by the number of its head: 1 for a retrieval head, 0 for a streaming head
/// (DuoAttention, arXiv:2410.10819).
struct head_table {
  by_lane<float const> heads{};  ///< one number for each lane, in memory of the caller that the executor can read;
                                 ///< null: every entry scores 0
  label table{};                 ///< the name of this table in specs; empty: it has none

  static constexpr auto name = "head_table";
  using needs = kvpolicy::needs<>;
  static constexpr granularity decides = granularity::lane;

  /// The score of an entry is the number of its head.
  struct of_head {
    by_lane<float const> heads;
    KVPOLICY_HD float operator()(float, entry at) const { return heads.data != nullptr ? *heads.row(at.lane) : 0.0f; }
  };

  /// Takes the table that `table` names, when a spec is read.
  void use_table(by_lane<float const> named) { heads = named; }

  [[nodiscard]] constexpr of_head entry_scores(auto const&) const { return {heads}; }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(head_table const& a, head_table const& b) {
    return a.heads.data == b.heads.data && a.heads.sequence == b.heads.sequence && a.heads.layer == b.heads.layer &&
           a.heads.head == b.heads.head && a.table == b.table;
  }
};

[[nodiscard]] inline std::string print(head_table const& of) {
  if (*of.table.text != '\0') return "head_table(table=" + to_string(of.table) + ")";
  return of.heads.data != nullptr ? "head_table(given)" : "head_table";
}

}  // namespace KVPOLICY_NAMESPACE
