// SPDX-License-Identifier: Apache-2.0
// The stage mix of specs, whose other scorer is a field there and a type in C++.
#pragma once

#include <array>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/knorm.hpp>
#include <kvpolicy/scorers/random.hpp>
#include <kvpolicy/scorers/recency.hpp>
#include <kvpolicy/scorers/stages/mix.hpp>

namespace KVPOLICY_NAMESPACE {

/// The other scorers that a spec may name in `mix`.
enum class mixed_with { recency, knorm, random };
[[nodiscard]] constexpr std::array<char const*, 3> names(mixed_with) { return {"recency", "knorm", "random"}; }

/// The fields of `mix` in a spec, which say what type of `mix` it is. It is no scorer itself.
template <scorer Score>
struct mix_by_name {
  Score score_of{};
  float lambda = 0.5f;
  mixed_with with = mixed_with::recency;

  static constexpr auto name = "mix";
  static constexpr auto fields() {
    return make_fields(field{"lambda", &mix_by_name::lambda}, field{"with", &mix_by_name::with});
  }
  /// The same stage around another scorer.
  template <scorer Other>
  [[nodiscard]] constexpr mix_by_name<Other> around(Other const& other) const {
    return {other, lambda, with};
  }
  void check(char const* call) const { mix<Score>{score_of, lambda}.check(call); }
  /// Calls visit(stage) with the stage that the fields say, and returns what it returns.
  template <class Visit>
  auto with_stage(Visit const& visit) const {
    if (with == mixed_with::knorm) return visit(mix<Score, knorm>{score_of, lambda});
    if (with == mixed_with::random) return visit(mix<Score, random_scores>{score_of, lambda});
    return visit(mix<Score, recency>{score_of, lambda});
  }
};

}  // namespace KVPOLICY_NAMESPACE
