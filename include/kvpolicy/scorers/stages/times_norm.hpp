// SPDX-License-Identifier: Apache-2.0
// Stage: the scores of entries, times the norms of their values.
#pragma once

#include <array>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/projected_norms.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>
#include <string>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

/// Whose norms scores are multiplied with: values as they are, or after the model's output projection.
enum class normed_rows { values, projected };
[[nodiscard]] constexpr std::array<char const*, 2> names(normed_rows) { return {"values", "projected"}; }

/// Multiplies each score by the norm of the entry's value: an entry that is attended to, but whose value is nearly 0,
/// adds nothing to what attention returns (after Guo et al. 2024, arXiv:2406.12335, who take the l1 norm).
///
///     s' = (s + epsilon) ||v||     projected: the mean of ||W_o v|| over the group's query heads
///
/// Beside what its scorer reads, it reads values; of projected ones `value_norms`, or else `values` and
/// `output_projection`.
template <scorer Score, normed_rows Of = normed_rows::values>
struct times_norm {
  Score score_of{};
  norm_of_row norm = norm_of_row::l2;  ///< l1 is of projected values only
  float epsilon = 0;

  static constexpr auto name = "times_norm";
  static constexpr auto fields() {
    return make_fields(field{"norm", &times_norm::norm}, field{"epsilon", &times_norm::epsilon});
  }
  using needs = std::conditional_t<Of == normed_rows::values, also_needs<Score, values>,
                                   also_needs<Score, norms_or_values, norms_or_projection>>;
  using wraps = Score;
  using verbs =
      std::conditional_t<Of == normed_rows::values, kvpolicy::verbs<>, kvpolicy::verbs<ops::projected_norm_t>>;
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
  [[nodiscard]] constexpr times_norm<Other, Of> around(Other const& other) const {
    return {other, norm, epsilon};
  }
  void check(char const* call) const {
    expects(Of == normed_rows::projected || norm == norm_of_row::l2, call, "times_norm.norm", to_string(norm),
            "values as they are have l2; l1 is of projected ones");
    expects(epsilon >= 0, call, "times_norm.epsilon", epsilon, "it is added to every score, 0 or more");
    detail::refuse_lanes_together(call, "times_norm.score_of", score_of, "a value belongs to one lane");
    detail::refuse_blocks(call, "times_norm.score_of", score_of);
  }
  void score(auto& exec, auto const& in, score_view const& out) const {
    score_of.score(exec, in, out);
    if constexpr (Of == normed_rows::values) {
      ops::row_norm(exec, in.template get<values>(), product{epsilon}, out);
    } else {
      detail::apply_projected_norms(exec, in, {norm}, product{epsilon}, out);
    }
  }

  friend bool operator==(times_norm const&, times_norm const&) = default;
};

/// "knorm | times_norm(of=values, norm=l2, epsilon=0)"
template <class Score, normed_rows Of>
[[nodiscard]] std::string print(times_norm<Score, Of> const& of) {
  return to_string(of.score_of) + " | times_norm(of=" + to_string(Of) + ", norm=" + to_string(of.norm) +
         ", epsilon=" + to_string(of.epsilon) + ")";
}

}  // namespace KVPOLICY_NAMESPACE
