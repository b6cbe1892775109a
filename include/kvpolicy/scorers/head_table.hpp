// Scores that depend on the head alone: DuoAttention's retrieval heads, and none at all.
#pragma once

#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// Every entry of a lane has its head's number: 1 for a head that retrieves, 0 for one that streams (DuoAttention,
/// arXiv:2410.10819). `heads`: one number a lane, of the caller's memory where the executor reads; null: 0 for all.
struct head_table {
  by_lane<float const> heads{};

  static constexpr auto name = "head_table";
  using needs = kvpolicy::needs<>;
  static constexpr granularity decides = granularity::lane;

  /// The number of an entry's head.
  struct of_head {
    by_lane<float const> heads;
    KVPOLICY_HD float operator()(float, entry at) const { return heads.data != nullptr ? *heads.row(at.lane) : 0.0f; }
  };

  void score(auto& exec, auto const&, score_view const& out) const { ops::map(exec, out, of_head{heads}); }

  friend bool operator==(head_table const& a, head_table const& b) {
    return a.heads.data == b.heads.data && a.heads.sequence == b.heads.sequence && a.heads.layer == b.heads.layer &&
           a.heads.head == b.heads.head;
  }
};
static_assert(scorer<head_table>);

[[nodiscard]] inline std::string print(head_table const& of) {
  return of.heads.data != nullptr ? "head_table(given)" : "head_table";
}

}  // namespace KVPOLICY_NAMESPACE
