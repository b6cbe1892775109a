// SPDX-License-Identifier: Apache-2.0
// Verb: computes one number of some scores of each segment.
#pragma once

#include <concepts>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {

/// What is computed of n scores x: their sum, their mean, the highest one, or their variance, which is the mean of
/// (x - mean)^2. Of no scores the highest is -inf, and the others are 0.
enum class statistic { sum, mean, highest, variance };

namespace detail {

/// The larger number; NaN if either is.
struct highest_op {
  KVPOLICY_HD constexpr float operator()(float a, float b) const { return b > a || b != b ? b : a; }
};

/// What is known of scores after one pass.
struct score_sums {
  static constexpr float infinity = std::numeric_limits<float>::infinity();  // device code may not call the function
  double sum = 0;
  float high = -infinity;
  int count = 0;

  KVPOLICY_HD void add(float score) {
    sum += static_cast<double>(score);
    high = highest_op{}(high, score);
    ++count;
  }
  [[nodiscard]] KVPOLICY_HD double mean() const { return count > 0 ? sum / count : 0; }
  /// A score's part in the sum of the second pass, which only the variance needs.
  [[nodiscard]] KVPOLICY_HD double square(float score) const {
    double const apart = static_cast<double>(score) - mean();
    return apart * apart;
  }
  [[nodiscard]] KVPOLICY_HD float value(statistic of, double squares) const {
    if (of == statistic::highest) return high;
    if (of == statistic::sum) return static_cast<float>(sum);
    if (of == statistic::mean) return static_cast<float>(mean());
    return count > 0 ? static_cast<float>(squares / count) : 0;
  }
};

}  // namespace detail

namespace ops {

/// `row_stats(exec, scores, among, of, out)`: computes the statistic `of` of the scores of each segment whose entries
/// `among` takes.
///
/// - in: `scores` [segments, entries]; `among`, a struct with a KVPOLICY_HD `bool operator()(entry) const`, such as a
///   protection. The budget of these entries is not set.
/// - out: `out` has a float for each segment, in the row of the segment's first lane.
/// - NaN: makes each statistic NaN.
/// - range: sums are in double precision.
/// - cost: O(entries) per segment in one pass, two for the variance; no scratch.
/// - throws: `invalid_argument` if `out` is null. On the host, an exception of `among` is passed on, and the numbers of
///   some segments are written.
/// - source: SimLayerKV (sum).
struct row_stats_t : verb<row_stats_t> {
  static constexpr auto name = "row_stats";
  template <executor Executor, class Among>
  void operator()(Executor& exec, score_view const& scores, Among const& among, statistic of,
                  by_lane<float> const& out) const {
    verb<row_stats_t>::operator()(exec, scores, among, of, out);  // typed, so that out may be in braces
  }
  template <class Among>
    requires requires(Among const& among, entry at) {
      { among(at) } -> std::same_as<bool>;
    }
  static void check(score_view const&, Among const&, statistic, by_lane<float> const& out) {
    expects(out.data != nullptr, name, "out", "null", "it has a number for each segment");
  }
};
inline constexpr row_stats_t row_stats{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
