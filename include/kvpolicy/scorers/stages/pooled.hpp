// SPDX-License-Identifier: Apache-2.0
// Stage: the scores of neighbouring entries, pooled.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/pool.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>

namespace KVPOLICY_NAMESPACE {

/// Gives each entry the maximum or the mean of the scores around it, as SnapKV does before it chooses, so that what
/// stands beside a good entry stays, too.
///
///     s'_i = max, or mean, of s_j     |i - j| <= (K - 1) / 2
///
/// Neighbours are adjacent in the cache, and all entries of a lane are pooled.
template <scorer Score>
struct pooled {
  Score score_of{};
  pooling pool = max_pool{7};

  static constexpr auto name = "pooled";
  static constexpr auto fields() { return make_fields(field{"pool", &pooled::pool}); }
  using needs = typename Score::needs;
  using wraps = Score;
  using verbs = kvpolicy::verbs<ops::pool_t>;
  static constexpr granularity decides = decides_inside<Score>;
  static constexpr bool rows_see_every_entry = detail::rows_see_every_entry<Score>;
  static_assert(!detail::ranks_candidates<Score>, "kvpolicy: pooled needs a scorer that scores every entry");

  /// The same stage around another scorer.
  template <scorer Other>
  [[nodiscard]] constexpr pooled<Other> around(Other const& other) const {
    return {other, pool};
  }
  void check(char const* call) const {
    expects(pool.width >= 1 && pool.width % 2 == 1, call, "pooled.pool", pool.width, "a pool has an odd width");
    expects(
        !detail::facts_of(score_of).ranks_candidates, call, "pooled.score_of", [&] { return to_string(score_of); },
        "it ranks the entries that compete, and pooled needs a score of every entry");
    detail::refuse_blocks(call, "pooled.score_of", score_of);
  }
  void score(auto& exec, auto const& in, score_view const& out) const {
    score_of.score(exec, in, out);
    ops::pool(exec, pool, out, 0);
  }

  friend bool operator==(pooled const&, pooled const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
