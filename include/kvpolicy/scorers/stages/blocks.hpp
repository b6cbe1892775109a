// SPDX-License-Identifier: Apache-2.0
// Stage: entries stay or go in whole blocks.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/block_scores.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>

namespace KVPOLICY_NAMESPACE {

/// Makes blocks of `size` entries stay or go as one, by a score of all their members. ChunkKV keeps so the parts of a
/// prompt that belong together (Liu et al. 2025, arXiv:2502.00299).
///
///     kv::blocks{.score_of = kv::snapkv{}, .size = 20, .how = kv::reduction::mean}
///
/// The budget counts blocks: for B entries it keeps B div `size` of them, at least one; for a ratio R, int(blocks (1 -
/// R)). Blocks begin at the first entry that the lane holds; the last one may be shorter and counts as one. A block
/// with a forced entry is forced, and is one of those that stay. Where a lane has fewer entries than a block, its
/// entries are chosen one by one. Each lane has a budget of its own.
template <scorer Score>
struct blocks {
  Score score_of{};
  int size = 20;
  reduction how = reduction::mean;
  granularity decides = detail::decides_of(score_of);  ///< as the scorer inside

  static constexpr auto name = "blocks";
  static constexpr auto fields() { return make_fields(field{"size", &blocks::size}, field{"how", &blocks::how}); }
  using needs = typename Score::needs;
  using wraps = Score;
  using verbs = kvpolicy::verbs<ops::block_scores_t>;
  static constexpr bool rows_see_every_entry = detail::rows_see_every_entry<Score>;

  /// The same stage around another scorer.
  template <scorer Other>
  [[nodiscard]] constexpr blocks<Other> around(Other const& other) const {
    return {other, size, how};
  }
  void check(char const* call) const {
    expects(size >= 1, call, "blocks.size", size, "a block has at least one entry");
    expects(how != reduction::last, call, "blocks.how", "last", "a block is more than its last entry");
    detail::refuse_first(call, "blocks.score_of", score_of);
    detail::refuse_blocks(call, "blocks.score_of", score_of);
  }
  /// How many entries stay or go as one.
  [[nodiscard]] constexpr int entries_of_block() const { return size; }
  void score(auto& exec, auto const& in, score_view const& out) const {
    score_of.score(exec, in, out);
    ops::block_scores(exec, score_blocks{size, how}, out);
  }

  friend bool operator==(blocks const&, blocks const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
