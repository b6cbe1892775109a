// SPDX-License-Identifier: Apache-2.0
// Stage: scores that fall with the age of their entries.
#pragma once

#include <cmath>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>

namespace KVPOLICY_NAMESPACE {

/// Multiplies each score by a power of the entry's age. Scores that are not negative, such as those of attention, fall
/// with age; negative ones, such as those of `knorm`, rise.
///
///     s' = decay^(p - position) s     p: the newest position
template <scorer Score>
struct decayed {
  Score score_of{};
  float decay = 1;

  static constexpr auto name = "decayed";
  static constexpr auto fields() { return make_fields(field{"decay", &decayed::decay}); }
  using needs = typename Score::needs;
  using wraps = Score;
  static constexpr granularity decides = decides_inside<Score>;
  static constexpr bool ranks_candidates = detail::ranks_candidates<Score>;
  static constexpr bool rows_see_every_entry = detail::rows_see_every_entry<Score>;

  /// The score of an entry by its age.
  struct by_age {
    float decay;
    lanes batch;
    /// The same in one lane.
    struct of_lane {
      float decay;
      int newest;
      KVPOLICY_HD float operator()(float old, entry at) const {
        if (!detail::competes(old)) return old;
        return old * std::pow(decay, static_cast<float>(newest - at.position));
      }
    };
    [[nodiscard]] KVPOLICY_HD of_lane in_lane(lane_entries const& of) const { return {decay, batch.newest(of.lane)}; }
    KVPOLICY_HD float operator()(float old, entry at) const { return in_lane({.lane = at.lane})(old, at); }
  };

  /// The same stage around another scorer.
  template <scorer Other>
  [[nodiscard]] constexpr decayed<Other> around(Other const& other) const {
    return {other, decay};
  }
  void check(char const* call) const {
    expects(decay > 0 && decay <= 1, call, "decayed.decay", decay, "older entries count less, and not nothing: 0 to 1");
    detail::refuse_blocks(call, "decayed.score_of", score_of);
  }
  void score(auto& exec, auto const& in, score_view const& out) const {
    score_of.score(exec, in, out);
    ops::map(exec, out, by_age{decay, in.lanes});
  }

  friend bool operator==(decayed const&, decayed const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
