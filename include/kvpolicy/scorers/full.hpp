// SPDX-License-Identifier: Apache-2.0
// The full cache, which drops nothing.
#pragma once

#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Keeps every entry. It is the baseline of every comparison.
struct full {
  static constexpr auto name = "full";
  static constexpr auto fields() { return make_fields(); }
  using needs = kvpolicy::needs<>;
  static constexpr granularity decides = granularity::lane;
  static constexpr phase when = phase::prefill;

  [[nodiscard]] constexpr everything forces() const { return {}; }
  void score(auto&, auto const&, score_view const&) const {}

  friend bool operator==(full const&, full const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
