// SPDX-License-Identifier: Apache-2.0
// Verb: computes the attention that entries receive, and the most of it when each row is spread over neighbours.
#pragma once

#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/pool.hpp>

namespace KVPOLICY_NAMESPACE {

/// How rows are pooled, and which entries are.
struct pooled_attention_options {
  pooling pool = avg_pool{5};
  int tail = 0;       ///< the last entries of a lane, which are not pooled
  int last_rows = 0;  ///< how many of the last rows are used; 0: all

  /// How many of a lane's entries are pooled.
  [[nodiscard]] KVPOLICY_HD constexpr int pooled(int entries) const { return entries > tail ? entries - tail : 0; }
};

namespace detail {

/// By what a pooled row is multiplied so that it has the mass that the row had. 0 / 0 is 0.
[[nodiscard]] KVPOLICY_HD constexpr float restored(float mass, float pooled) {
  return mass == 0 && pooled == 0 ? 0 : mass / pooled;
}

}  // namespace detail

namespace ops {

/// `pooled_attention(exec, keys, rows, options, mean, out)`: with p of a row = softmax(q k / sqrt(D)) over all keys
/// that the row may see, over all rows and the query heads of a lane's group:
///
///     mean[e] = mean of p_e
///     out[e]  = max of pool(p)_e (sum of p) / (sum of pool(p))        e before the tail; 0 / 0 is 0
///
/// Only the entries before the tail are pooled, and both sums are over them, so pooling does not change the mass of a
/// row. Of an average the sums differ by what is lost at the two ends: with h = (width - 1) / 2,
///
///     sum of pool(p) = sum of p - sum over j < h of (h - j) (p_j + p_(n-1-j)) / width
///
/// - in: as for `compute_attention_mass`. Log-sum-exps of rows are not read.
/// - out: float32 [lanes, entries], which is 0 in the tail, and `mean`, a row of as many floats for each lane.
/// - NaN: a NaN in a key or a row makes every entry that the row sees NaN.
/// - cost: that of `compute_attention_mass` of as many rows, and for each row and entry as many sums as a pool is wide;
///   with a maximum twice as many. Scratch is the same on the host.
/// - throws: as `compute_attention_mass` and `pool`; `invalid_argument` if a segment of the scores is not one lane, or
///   if `mean` is null. A device takes pools of up to 65 entries, and 1024 rows.
/// - source: DefensiveKV (Feng et al. 2025, arXiv:2510.13334).
struct pooled_attention_t : verb<pooled_attention_t> {
  static constexpr auto name = "pooled_attention";
  template <executor Executor>
  void operator()(Executor& exec, keys const& from, query_view const& rows, pooled_attention_options const& how,
                  by_lane<float> const& mean, score_view const& out) const {
    // Parameters have types here, so that callers may write options in braces.
    verb<pooled_attention_t>::operator()(exec, from, rows, how, mean, out);
  }

  static void check(keys const& from, query_view const& rows, pooled_attention_options const& how,
                    by_lane<float> const& mean, score_view const& out) {
    compute_attention_mass_t::check(from, rows, {.last_rows = how.last_rows}, out);
    pool_t::check(how.pool, out, how.tail);
    expects(out.decides == granularity::lane, name, "out.decides", static_cast<int>(out.decides),
            "keys belong to lanes");
    expects(mean.data != nullptr, name, "mean", "null", "each entry has a mean");
  }
};
inline constexpr pooled_attention_t pooled_attention{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
