// SPDX-License-Identifier: Apache-2.0
// The stage times_norm of specs: whose norms it multiplies with is a field there and a part of the type in C++.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/stages/times_norm.hpp>

namespace KVPOLICY_NAMESPACE {

/// The fields of `times_norm` in a spec, which say what type of `times_norm` it is. It is no scorer itself.
template <scorer Score>
struct times_norm_by_name {
  Score score_of{};
  normed_rows of = normed_rows::values;
  norm_of_row norm = norm_of_row::l2;
  float epsilon = 0;

  static constexpr auto name = "times_norm";
  static constexpr auto fields() {
    return make_fields(field{"of", &times_norm_by_name::of}, field{"norm", &times_norm_by_name::norm},
                       field{"epsilon", &times_norm_by_name::epsilon});
  }
  /// The same stage around another scorer.
  template <scorer Other>
  [[nodiscard]] constexpr times_norm_by_name<Other> around(Other const& other) const {
    return {other, of, norm, epsilon};
  }
  void check(char const* call) const {
    with_stage([&](auto const& stage) { stage.check(call); });
  }
  /// Calls visit(stage) with the stage that the fields say, and returns what it returns.
  template <class Visit>
  auto with_stage(Visit const& visit) const {
    if (of == normed_rows::projected) return visit(times_norm<Score, normed_rows::projected>{score_of, norm, epsilon});
    return visit(times_norm<Score>{score_of, norm, epsilon});
  }
};

}  // namespace KVPOLICY_NAMESPACE
