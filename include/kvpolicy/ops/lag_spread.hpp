// SPDX-License-Identifier: Apache-2.0
// Verb: scores rows by how unevenly their channels lie in the bounds of the block of rows behind theirs.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Blocks of `lag` entries each, from entry `first` on. The entries of a block are seen against the next block, so that
/// the last whole block and what follows it have no scores.
struct lagged_blocks {
  static constexpr int longest = 4096;
  int lag = 128;
  int first = 4;

  /// The blocks of a lane of so many entries that have scores.
  [[nodiscard]] KVPOLICY_HD constexpr int scored(int entries) const {
    int const whole = (entries - first) / lag;
    return entries > first && whole > 1 ? whole - 1 : 0;
  }
  /// The ordinal behind the entries that have scores; `first` if none has.
  [[nodiscard]] KVPOLICY_HD constexpr int end(int entries) const { return first + scored(entries) * lag; }

  friend bool operator==(lagged_blocks const&, lagged_blocks const&) = default;
};

namespace detail {

/// What numbers above the low bound of a channel are multiplied with: 1 / (high - low). It is 0 where the bounds are
/// one number, or where that would be above all floats.
[[nodiscard]] KVPOLICY_HD constexpr float inverse_range(float high, float low) {
  float const range = high - low;
  return range < 0x1p-126f ? 0.0f : 1 / range;
}

}  // namespace detail

namespace ops {

/// `lag_spread(exec, rows, blocks, combine, out)`: out[e] = combine(out[e], share of entry e in its block).
///
///     z       = (x - low) / (high - low)       of each channel; its bounds are those of the next block's rows
///     spread  = standard deviation of z over the D channels, which divides by D - 1
///     share   = softmax of spread over the entries of the block
///
/// Where the bounds of a channel are one number, z is 0. The share of an entry of no block with scores is 0.
///
/// - in: `rows`, keys or values of `out.lanes`, of any element type; `combine`, as for `row_norm`.
/// - out: float32 [lanes, entries].
/// - NaN: makes the share of every entry of its block NaN, and of the block before.
/// - cost: reads every row twice, the second time from a cache where a block of rows fits one. Scratch per worker on
///   the host: 21 rows of D floats, and a float for each entry of a block.
/// - throws: `invalid_argument` if a block does not have 1 to 4096 entries, if `first` is negative, or if a segment of
///   the scores is not one lane.
/// - source: LagKV (Liang et al. 2025, arXiv:2504.04704).
struct lag_spread_t : verb<lag_spread_t> {
  static constexpr auto name = "lag_spread";
  template <executor Executor, class Combine>
  void operator()(Executor& exec, row_view const& from, lagged_blocks const& blocks, Combine const& combine,
                  score_view const& out) const {
    verb<lag_spread_t>::operator()(exec, from, blocks, combine, out);  // typed, so that blocks may be in braces
  }
  template <class Combine>
  static void check(row_view const& from, lagged_blocks const& blocks, Combine const&, score_view const& out) {
    detail::check_readable(name, "rows", from.rows.element);
    detail::check_scales(name, "rows", from.rows);
    expects(blocks.lag >= 1 && blocks.lag <= blocks.longest, name, "blocks.lag", blocks.lag,
            "a block has 1 to 4096 entries");
    expects(blocks.first >= 0, name, "blocks.first", blocks.first, "ordinals begin at 0");
    expects(out.decides == granularity::lane, name, "out.decides", static_cast<int>(out.decides),
            "rows belong to lanes");
  }
};
inline constexpr lag_spread_t lag_spread{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
