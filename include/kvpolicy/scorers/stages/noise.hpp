// SPDX-License-Identifier: Apache-2.0
// Stage: noise on the scores, by which the best ones are a random draw.
#pragma once

#include <cmath>
#include <cstdint>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/random.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>

namespace KVPOLICY_NAMESPACE {

/// Adds Gumbel noise to each score. The best N entries are then N draws without replacement, each of them by the
/// softmax of the scores of what is left (Kool et al. 2019, arXiv:1903.06059).
///
///     s' = s - log(-log(u))     u = that of `random_scores` with this seed, at least 2^-25
///
/// u is a number of (seed, request, layer, head, position), so an entry has the same noise at every decision.
template <scorer Score>
struct noise {
  Score score_of{};
  std::uint64_t seed = 42;

  static constexpr auto name = "noise";
  static constexpr auto fields() { return make_fields(field{"seed", &noise::seed}); }
  using needs = typename Score::needs;
  using wraps = Score;
  static constexpr granularity decides = decides_inside<Score>;
  static constexpr bool ranks_candidates = detail::ranks_candidates<Score>;
  static constexpr bool rows_see_every_entry = detail::rows_see_every_entry<Score>;

  /// The old score and the noise of an entry.
  struct gumbel {
    random_scores::uniform uniform;
    KVPOLICY_HD float operator()(float old, entry at) const {
      float const drawn = uniform(old, at);
      return old - std::log(-std::log(drawn > 0 ? drawn : 2.98023223876953125e-8f));  // 2^-25
    }
  };

  /// The same stage around another scorer.
  template <scorer Other>
  [[nodiscard]] constexpr noise<Other> around(Other const& other) const {
    return {other, seed};
  }
  void check(char const* call) const { detail::refuse_blocks(call, "noise.score_of", score_of); }
  void score(auto& exec, auto const& in, score_view const& out) const {
    score_of.score(exec, in, out);
    ops::map(exec, out, gumbel{{seed, in.lanes.request}});
  }

  friend bool operator==(noise const&, noise const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
