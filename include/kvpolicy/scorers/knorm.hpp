// Knorm: keys of small norm are the ones that attention looks at.
#pragma once

#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// The negated norm of the key (Devoto et al. 2024, arXiv:2406.11430). RoPE keeps norms, so phases do not matter.
struct knorm {
  static constexpr auto name = "knorm";
  static constexpr auto fields() { return std::tuple{}; }
  using needs = kvpolicy::needs<keys>;
  static constexpr granularity decides = granularity::lane;

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::row_norm(exec, in.template get<keys>(), negated{}, out);
  }

  friend bool operator==(knorm const&, knorm const&) = default;
};
static_assert(scorer<knorm>);

}  // namespace KVPOLICY_NAMESPACE
