// SPDX-License-Identifier: Apache-2.0
// Knorm keeps keys of small norm, which receive more attention than keys of large norm.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by the negated norm of its key (Devoto et al. 2024, arXiv:2406.11430). RoPE preserves norms, so
/// the scores do not depend on positions.
struct knorm {
  static constexpr auto name = "knorm";
  static constexpr auto fields() { return make_fields(); }
  using needs = kvpolicy::needs<keys>;
  static constexpr granularity decides = granularity::lane;

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::row_norm(exec, in.template get<keys>(), negated{}, out);
  }

  friend bool operator==(knorm const&, knorm const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
