// SPDX-License-Identifier: Apache-2.0
// Stage: the scores of entries, times the norms of their rows.
#pragma once

#include <array>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>

namespace KVPOLICY_NAMESPACE {

/// Whose norms scores are multiplied with.
enum class normed_rows { values };
[[nodiscard]] constexpr std::array<char const*, 1> names(normed_rows) { return {"values"}; }

/// Which norm of a row it is.
enum class norm_of_row { l2 };
[[nodiscard]] constexpr std::array<char const*, 1> names(norm_of_row) { return {"l2"}; }

/// Multiplies each score by the norm of the entry's value: an entry that is attended to, but whose value is nearly 0,
/// adds nothing to what attention returns (after Guo et al. 2024, arXiv:2406.12335, who take the l1 norm).
///
///     s' = (s + epsilon) ||v||
///
/// It reads values, beside what its scorer reads.
template <scorer Score>
struct times_norm {
  Score score_of{};
  normed_rows of = normed_rows::values;
  norm_of_row norm = norm_of_row::l2;
  float epsilon = 0;

  static constexpr auto name = "times_norm";
  static constexpr auto fields() {
    return make_fields(field{"of", &times_norm::of}, field{"norm", &times_norm::norm},
                       field{"epsilon", &times_norm::epsilon});
  }
  using needs = also_needs<Score, values>;
  using wraps = Score;
  static constexpr granularity decides = decides_inside<Score>;
  static constexpr bool ranks_candidates = detail::ranks_candidates<Score>;
  static constexpr bool rows_see_every_entry = detail::rows_see_every_entry<Score>;

  /// The new score by the old one and the norm. An entry that does not compete keeps its score.
  struct product {
    float epsilon;
    KVPOLICY_HD float operator()(float old, float length) const {
      return detail::competes(old) ? (old + epsilon) * length : old;
    }
  };

  /// The same stage around another scorer.
  template <scorer Other>
  [[nodiscard]] constexpr times_norm<Other> around(Other const& other) const {
    return {other, of, norm, epsilon};
  }
  void check(char const* call) const {
    expects(epsilon >= 0, call, "times_norm.epsilon", epsilon, "it is added to every score, 0 or more");
    detail::refuse_lanes_together(call, "times_norm.score_of", score_of, "a value belongs to one lane");
    detail::refuse_blocks(call, "times_norm.score_of", score_of);
  }
  void score(auto& exec, auto const& in, score_view const& out) const {
    score_of.score(exec, in, out);
    ops::row_norm(exec, in.template get<values>(), product{epsilon}, out);
  }

  friend bool operator==(times_norm const&, times_norm const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
