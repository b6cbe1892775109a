// SPDX-License-Identifier: Apache-2.0
// Verb: computes how the attention that entries receive differs from query row to query row.
#pragma once

#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/query_model.hpp>

namespace KVPOLICY_NAMESPACE {

/// Whose attention it is: `head` is one of the query heads of each lane's group.
struct moments_options {
  int head = 0;
  int last_rows = 0;        ///< how many of the last rows are used; 0: all
  float gamma = 0;          ///< the weight of the variance in a score
  bool accumulate = false;  ///< adds to variances and entropies instead of overwriting them
};

/// Rows of floats of each lane that get numbers of its entries.
struct moment_rows {
  by_lane<float> variance{};
  by_lane<float> entropy{};
};

namespace detail {

/// Where the moments of a lane's entries are written.
struct entry_moments {
  float* score;
  float* variance;
  float* entropy;
  float gamma;
  bool accumulate;

  /// Writes mean and variance of an entry from sums over `rows` probabilities.
  KVPOLICY_HD void put(int e, int rows, float sum, float squares) const {
    auto const count = static_cast<float>(rows > 0 ? rows : 1);
    float const mean = sum / count;
    float const spread = rows > 1 ? (squares - sum * mean) / (count - 1) : 0.0f;
    float const positive = spread < 0 ? 0.0f : spread;  // rounding
    score[e] = mean + gamma * positive;
    variance[e] = accumulate ? variance[e] + positive : positive;
  }
  KVPOLICY_HD void put_entropy(int e, float information) const {
    entropy[e] = accumulate ? entropy[e] + information : information;
  }
};

}  // namespace detail

namespace ops {

/// `attention_moments(exec, keys, rows, options, to, out)`: for each entry that is older than the first of the rows,
/// and one query head of each lane, with p of a row = softmax(q k / sqrt(D)) over all keys that the row may see:
///
///     out[e]      = mean over rows of p  +  gamma var(p)        var: over n rows, divided by n - 1; 0 for one row
///     variance[e] = var(p)
///     entropy[e]  = sum over rows of -p ln(p + 1e-10)
///
/// - in: as for `compute_attention_mass`. Log-sum-exps of rows are not read.
/// - out: float32 [lanes, entries], and `to`, rows of as many floats. Other entries get 0.
/// - NaN: a NaN in a key or a row makes every entry that the row sees NaN.
/// - cost: that of `compute_attention_mass` of as many rows, and a logarithm for each row and entry. Scratch is the
///   same.
/// - throws: as `compute_attention_mass`; `invalid_argument` if there is no such head, if a segment of the scores is
///   not one lane, or if a row of `to` is null.
/// - source: CAKE (Qin et al. 2025, arXiv:2503.12491), equations 3 to 6.
struct attention_moments_t : verb<attention_moments_t> {
  static constexpr auto name = "attention_moments";
  template <executor Executor>
  void operator()(Executor& exec, keys const& from, query_view const& rows, moments_options const& how,
                  moment_rows const& to, score_view const& out) const {
    // Parameters have types here, so that callers may write options in braces.
    verb<attention_moments_t>::operator()(exec, from, rows, how, to, out);
  }

  static void check(keys const& from, query_view const& rows, moments_options const& how, moment_rows const& to,
                    score_view const& out) {
    compute_attention_mass_t::check(from, rows, {.last_rows = how.last_rows}, out);
    int const group = rows.rows > 0 ? rows.heads / out.lanes.heads : 1;
    expects(how.head >= 0 && how.head < group, name, "head", how.head, "it is one of a group's query heads");
    expects(out.decides == granularity::lane, name, "out.decides", static_cast<int>(out.decides),
            "keys belong to lanes");
    expects(to.variance.data != nullptr, name, "to.variance", "null", "each entry has a variance");
    expects(to.entropy.data != nullptr, name, "to.entropy", "null", "each entry has an entropy");
  }
};
inline constexpr attention_moments_t attention_moments{};

}  // namespace ops

namespace detail {

/// The rows of one query head of each lane's group, without log-sum-exps.
[[nodiscard]] inline query_view rows_of_head(query_view const& rows, int heads_of_lane, int head) {
  query_view made = one_of_group(rows, head, heads_of_lane);
  made.lse = {};
  return made;
}
/// Keys whose sinks are those of the same query heads.
[[nodiscard]] inline keys keys_of_head(keys from, int heads_of_lane, int head) {
  sink_logits& sinks = from.logits.sinks;
  if (sinks.data != nullptr) sinks.data += head * sinks.head;
  sinks.head *= heads_of_lane;
  return from;
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
