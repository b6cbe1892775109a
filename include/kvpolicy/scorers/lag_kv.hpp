// SPDX-License-Identifier: Apache-2.0
// LagKV keeps the entries whose channels lie most unevenly in the range of the block that follows theirs.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/lag_spread.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/normalise.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/forced.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by its key and value, against the bounds of the next `lag` entries (Liang et al. 2025,
/// arXiv:2504.04704). It reads no query rows.
///
///     z   = (x - min) / (max - min)      x: a key or a value; channel by channel, bounds of the next block
///     p_x = softmax over the block of the standard deviation of z over the channels
///     s_j = rank in the block of (p_k + p_v) / 2
///
/// The rank is the number of entries of the block that are worse, over `lag`, so that all blocks keep about the same
/// part of their entries. With `cross` blocks compete by their numbers. The first `sinks` entries, the last whole block
/// and what follows it are forced. A lane of fewer than two blocks behind the sinks keeps its newest entries.
struct lag_kv {
  int lag = 128;       ///< entries of a block, at most 4096
  int sinks = 4;       ///< the first entries, which are kept
  bool cross = false;  ///< scores of different blocks are compared as they are

  static constexpr auto name = "lag_kv";
  static constexpr auto fields() {
    return make_fields(field{"lag", &lag_kv::lag}, field{"sinks", &lag_kv::sinks}, field{"cross", &lag_kv::cross});
  }
  using needs = kvpolicy::needs<keys, values>;
  using verbs = kvpolicy::verbs<ops::lag_spread_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool prompts_only = true;

  void check(char const* call) const {
    expects(lag >= 1 && lag <= lagged_blocks::longest, call, "lag_kv.lag", lag, "a block has 1 to 4096 entries");
    expects(sinks >= 0, call, "lag_kv.sinks", sinks, "a count cannot be negative");
  }
  [[nodiscard]] constexpr around_blocks forces() const { return {sinks, lag}; }

  /// The mean of the old and the new value.
  struct averaged {
    KVPOLICY_HD float operator()(float old, float now) const { return 0.5f * (old + now); }
  };
  /// The score of an entry in a lane that is too short; otherwise as it is.
  struct newest_if_short {
    lagged_blocks blocks;
    KVPOLICY_HD float operator()(float score, entry at) const {
      if (blocks.scored(at.count) > 0) return score;
      return at.ordinal < blocks.first
                 ? 0
                 : static_cast<float>(at.ordinal - blocks.first) / static_cast<float>(at.count - blocks.first);
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    lagged_blocks const blocks{lag, sinks};
    ops::lag_spread(exec, in.template get<keys>(), blocks, replaced{}, out);
    ops::lag_spread(exec, in.template get<values>(), blocks, averaged{}, out);
    if (!cross) ops::normalise(exec, normalising::rank, out, {lag, sinks});
    ops::map(exec, out, newest_if_short{blocks});
  }

  friend bool operator==(lag_kv const&, lag_kv const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
