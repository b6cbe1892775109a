// SPDX-License-Identifier: Apache-2.0
// Stage: the scores of each lane, or of each block of its entries, on a common scale.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/normalise.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>

namespace KVPOLICY_NAMESPACE {

/// Brings the scores of each lane to a common scale (`normalising`), so that lanes that share a budget or decide
/// together weigh alike, or another stage can add to them.
///
///     sum: s / sum of s     min_max: (s - min) / (max - min)     z: (s - mean) / d     softmax: e^s / sum of e^s
///     rank: the number of entries that are worse / the number of entries
///
/// Lanes that decide together are one. With a `block`, each block of so many entries has a scale of its own, the last
/// one, which may be shorter, too; ranks need blocks. With ranks, all blocks keep about the same part of their entries.
/// A NaN makes all scores of its lane or block NaN, but not with `min_max` and `rank`.
template <scorer Score>
struct normalised {
  Score score_of{};
  normalising how = normalising::sum;
  int block = 0;  ///< the entries that have a scale of their own; 0: all of a lane

  static constexpr auto name = "normalised";
  static constexpr auto fields() {
    return make_fields(field{"how", &normalised::how}, field{"block", &normalised::block});
  }
  using needs = typename Score::needs;
  using wraps = Score;
  static constexpr granularity decides = decides_inside<Score>;
  static constexpr bool ranks_candidates = detail::ranks_candidates<Score>;
  static constexpr bool rows_see_every_entry = detail::rows_see_every_entry<Score>;

  /// The same stage around another scorer.
  template <scorer Other>
  [[nodiscard]] constexpr normalised<Other> around(Other const& other) const {
    return {other, how, block};
  }
  void check(char const* call) const {
    expects(block >= 0, call, "normalised.block", block, "a count cannot be negative; 0 is all of a lane");
    expects(how != normalising::rank || (block >= 1 && block <= normalised_blocks::most_ranked), call,
            "normalised.block", block, "a block of ranks has 1 to 4096 entries");
    detail::refuse_blocks(call, "normalised.score_of", score_of);
  }
  void score(auto& exec, auto const& in, score_view const& out) const {
    score_of.score(exec, in, out);
    ops::normalise(exec, how, out, {block, 0});
  }

  friend bool operator==(normalised const&, normalised const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
