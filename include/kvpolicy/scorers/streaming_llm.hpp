// SPDX-License-Identifier: Apache-2.0
// StreamingLLM keeps the attention sinks and the most recent entries.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by its recency, and forces the first positions (Xiao et al. 2024, arXiv:2309.17453).
///
/// A lane of budget N keeps its sinks and the most recent N - sinks entries. The authors also re-rotate keys to their
/// new positions. Here that is up to the applier: `compact_rerotated` re-rotates keys, `compact` does not.
struct streaming_llm {
  int sinks = 4;  ///< first positions that are kept

  static constexpr auto name = "streaming_llm";
  static constexpr auto fields() { return make_fields(field{"sinks", &streaming_llm::sinks}); }
  using needs = kvpolicy::needs<>;
  static constexpr granularity decides = granularity::lane;

  /// The score of an entry is its ordinal.
  struct recency {
    static constexpr bool ascends_in_position = true;
    KVPOLICY_HD float operator()(float, entry at) const { return static_cast<float>(at.ordinal); }
  };

  void check(char const* call) const {
    expects(sinks >= 0, call, "streaming_llm.sinks", sinks, "a count cannot be negative");
  }
  [[nodiscard]] constexpr kvpolicy::sinks forces() const { return {sinks}; }
  [[nodiscard]] constexpr recency entry_scores(auto const&) const { return {}; }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(streaming_llm const&, streaming_llm const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
