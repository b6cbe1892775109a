// SPDX-License-Identifier: Apache-2.0
// Verb: gives every entry the score of its block.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Blocks of a segment's entries: those of the ordinals [b * size, (b + 1) * size). The last one may be shorter.
struct score_blocks {
  int size = 32;                    ///< entries of a block
  reduction how = reduction::mean;  ///< of the scores of its members: sum, mean or max
};

namespace detail {

/// Replaces the scores [begin, end) of a row by the score of the block that they are.
KVPOLICY_HD inline void reduce_block(float* row, int begin, int end, reduction how) {
  float found = row[begin];
  for (int e = begin + 1; e < end; ++e) {
    if (how == reduction::max) {
      found = found > row[e] || found != found ? found : row[e];
    } else {
      found += row[e];
    }
  }
  if (how == reduction::mean) found /= static_cast<float>(end - begin);
  for (int e = begin; e < end; ++e) row[e] = found;
}

}  // namespace detail

namespace ops {

/// `block_scores(exec, blocks, scores)`: replaces each score by that of the block that its entry is in.
///
/// - in, out: `scores` [segments, entries], float32. A segment with fewer entries than a block stays as it is. Scores
///   are added in their order.
/// - NaN: every reduction propagates NaN to the members of its block.
/// - cost: O(entries); no scratch.
/// - throws: `invalid_argument` if a block has no entries, or if entries are reduced by `last`.
/// - source: ChunkKV (Liu et al. 2025, arXiv:2502.00299), Neural Garbage Collection.
struct block_scores_t : verb<block_scores_t> {
  static constexpr auto name = "block_scores";
  static void check(score_blocks const& blocks, score_view const&) {
    expects(blocks.size >= 1, name, "blocks.size", blocks.size, "a block has at least one entry");
    expects(blocks.how != reduction::last, name, "blocks.how", "last", "a block is more than its last entry");
  }
};
inline constexpr block_scores_t block_scores{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
