// The full cache: nothing is dropped.
#pragma once

#include <kvpolicy/protect/protect.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Keeps everything: the baseline of every comparison.
struct full {
  static constexpr auto name = "full";
  static constexpr auto fields() { return std::tuple{}; }
  using needs = kvpolicy::needs<>;
  static constexpr granularity decides = granularity::lane;

  [[nodiscard]] constexpr everything forces() const { return {}; }
  void score(auto&, auto const&, score_view const&) const {}

  friend bool operator==(full const&, full const&) = default;
};
static_assert(scorer<full>);

}  // namespace KVPOLICY_NAMESPACE
