// SPDX-License-Identifier: Apache-2.0
// SideQuest: entries in spans that the model calls stale go, and all others stay.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: the spans of positions [begin, end) that are of no use any more, such as the outputs of tools that a model
/// has named. A span whose end is not after its beginning holds nothing.
///
/// - shape: int32 [sequences, count], in the executor's memory.
struct stale_spans {
  static constexpr auto name = "stale_spans";
  int const* begin = nullptr;
  int const* end = nullptr;
  int count = 0;              ///< spans of each sequence
  std::int64_t sequence = 0;  ///< elements from the spans of one sequence to those of the next

  void check(char const* call, shape const&) const {
    expects(count >= 0, call, "stale_spans.count", count, "a count cannot be negative");
    expects(count == 0 || begin != nullptr, call, "stale_spans.begin", "null", "each span begins at a position");
    expects(count == 0 || end != nullptr, call, "stale_spans.end", "null", "each span ends at a position");
  }
  void check_strides(char const* call, lanes const& batch) const {
    if (count > 0) detail::check_stride(call, "stale_spans.sequence", sequence, "sequences", batch.sequences);
  }

  /// True if a position is in a span of the sequence.
  [[nodiscard]] KVPOLICY_HD bool holds(int of, int position) const {
    for (int i = 0; i < count; ++i) {
      std::int64_t const at = of * sequence + i;
      if (begin[at] <= position && position < end[at]) return true;
    }
    return false;
  }
};

/// Scores an entry 0 if it is in a stale span, and 1 otherwise. With the pick `at_least` a policy drops what is stale,
/// and nothing else, as SideQuest does (Kariyappa and Suh, 2026: the model itself names the outputs of tools that are
/// stale). With a budget it drops what is stale first.
///
///     kv::eviction{.score = kv::not_stale{}, .budget = kv::unlimited{}, .pick = kv::at_least{0.5f}}
struct not_stale {
  static constexpr auto name = "not_stale";
  static constexpr auto fields() { return make_fields(); }
  using needs = kvpolicy::needs<stale_spans>;
  static constexpr granularity decides = granularity::lane;

  /// The score of an entry.
  struct one_outside {
    stale_spans spans;
    KVPOLICY_HD float operator()(float, entry at) const {
      return spans.holds(at.lane.sequence, at.position) ? 0.0f : 1.0f;
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::map(exec, out, one_outside{in.template get<stale_spans>()});
  }

  friend bool operator==(not_stale const&, not_stale const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
