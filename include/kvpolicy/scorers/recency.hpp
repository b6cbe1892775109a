// SPDX-License-Identifier: Apache-2.0
// Recency: the newest entries first.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by its ordinal in its lane, so that the newest ones stay. It forces nothing and needs no signal:
/// with `sinks(4)` beside it it is StreamingLLM, without it a sliding window.
struct recency {
  static constexpr auto name = "recency";
  static constexpr auto fields() { return make_fields(); }
  using needs = kvpolicy::needs<>;
  static constexpr granularity decides = granularity::lane;

  /// The score of an entry is its ordinal.
  struct of_ordinal {
    static constexpr bool ascends_in_position = true;
    KVPOLICY_HD float operator()(float, entry at) const { return static_cast<float>(at.ordinal); }
  };

  [[nodiscard]] constexpr of_ordinal entry_scores(auto const&) const { return {}; }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(recency const&, recency const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
