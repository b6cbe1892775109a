// SPDX-License-Identifier: Apache-2.0
// Verb: computes a weighted sum of the lengths of each key's RoPE pairs.
#pragma once

#include <cmath>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/rerotate.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// The pairs of a key's channels, `count` of them from the first channel on.
struct key_pairs {
  rope_style style = rope_style::neox;
  int count = 0;
  [[nodiscard]] KVPOLICY_HD constexpr int first(int pair) const { return style == rope_style::neox ? pair : 2 * pair; }
  [[nodiscard]] KVPOLICY_HD constexpr int second(int pair) const {
    return style == rope_style::neox ? pair + count : 2 * pair + 1;
  }
};

namespace ops {

/// `pair_norms(exec, keys, pairs, weights, combine, out)`: out[e] = combine(out[e], sum over pairs f of w_f |k_f|),
/// where |k_f| is the length of the pair, which RoPE does not change.
///
/// - in: `keys` of `out.lanes`; `weights`, a number for each pair of each lane; `combine` as for `row_norm`.
/// - out: float32 [lanes, entries].
/// - cost: reads every key once, and takes a square root for each pair. Scratch per worker: D floats.
/// - throws: `invalid_argument` if the pairs have more channels than keys, or if a segment of the scores is not one
///   lane.
/// - source: TriAttention (arXiv:2604.04921).
struct pair_norms_t : verb<pair_norms_t> {
  static constexpr auto name = "pair_norms";
  template <class Combine>
  static void check(keys const& from, key_pairs const& pairs, by_lane<float> const& weights, Combine const&,
                    score_view const& out) {
    detail::check_readable("pair_norms", "keys", from.rows.element);
    detail::check_scales("pair_norms", "keys", from.rows);
    expects(pairs.count >= 0 && 2 * pairs.count <= from.rows.channels, "pair_norms", "pairs.count", pairs.count,
            [&] { return "keys have " + std::to_string(from.rows.channels) + " channels"; });
    expects(weights.data != nullptr, "pair_norms", "weights", "null", "each pair has one");
    expects(out.decides == granularity::lane, "pair_norms", "out.decides", static_cast<int>(out.decides),
            "keys belong to lanes");
  }
};
inline constexpr pair_norms_t pair_norms{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
