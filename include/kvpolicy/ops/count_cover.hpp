// SPDX-License-Identifier: Apache-2.0
// Verb: counts how many of the best scores of each segment stay below a sum.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Finds the least score that may be counted, without an order: `Digit` of its bits in a pass over the scores, the
/// higher bits first. Scores that are at least 0 have the order of their bits.
template <int Digit>
struct cover_search {
  double limit;             ///< above 0
  std::uint32_t known = 0;  ///< the bits of a number: the scores that are higher have a sum below the limit
  double higher = 0;        ///< the sum of those that exceed it in the bits that were found
  int shift = 30 / Digit * Digit;
  double sum[1 << Digit] = {};

  [[nodiscard]] KVPOLICY_HD float score() const { return same_bits<float>(known); }
  /// A pass adds each score.
  KVPOLICY_HD void add(float score) {
    if (!(score >= 0)) return;
    std::uint32_t const bits = score == 0 ? 0 : same_bits<std::uint32_t>(score);  // -0 is 0
    if (bits >= known && (bits - known) >> shift < 1u << Digit)
      sum[(bits - known) >> shift] += static_cast<double>(score);
  }
  /// Ends a pass; false after the last one.
  KVPOLICY_HD bool advance() {
    int found = (1 << Digit) - 1;
    while (found > 0 && higher + sum[found] < limit) higher += sum[found--];
    for (double& each : sum) each = 0;
    known += static_cast<std::uint32_t>(found) << shift;
    shift -= Digit;
    return shift >= 0;
  }
  /// How many scores are counted, where so many are higher than `score()` and so many equal it.
  [[nodiscard]] KVPOLICY_HD int count(int above, int equal) const {
    if (known == 0) return above + equal;
    double const more = ::ceil((limit - higher) / static_cast<double>(score())) - 1;
    return above + (more < equal ? more > 0 ? static_cast<int>(more) : 0 : equal);
  }
};

}  // namespace detail

namespace ops {

/// `count_cover(exec, scores, among, limit, out)`: how many scores of each segment whose entries `among` takes, the
/// best ones first, have a sum that is still below the segment's limit.
///
/// - in: `scores` [segments, entries], at least 0; others and NaN are not counted. `among`, a struct with a KVPOLICY_HD
///   `bool operator()(entry) const`, as for `row_stats`. `limit`, a struct with a KVPOLICY_HD `double operator()(lane)
///   const`, is asked for the first lane of each segment. Of a limit that is not above 0, or NaN, the count is 0.
/// - out: a float for each segment, in the row of the segment's first lane. It is a whole number, exact up to 2^24.
/// - range: sums are in double precision.
/// - cost: 5 passes over the scores on the host, 9 on a device; no scratch.
/// - throws: `invalid_argument` if `out` is null. On the host, an exception of `among` or `limit` is passed on, and the
///   numbers of some segments are written.
/// - source: DefensiveKV (Feng et al. 2025, arXiv:2510.13334), which keeps those first that have most of the attention.
struct count_cover_t : verb<count_cover_t> {
  static constexpr auto name = "count_cover";
  template <class Among, class Limit>
    requires requires(Among const& among, Limit const& limit, lane one, entry at) {
      { among(at) } -> std::same_as<bool>;
      { limit(one) } -> std::same_as<double>;
    }
  static void check(score_view const&, Among const&, Limit const&, by_lane<float> const& out) {
    expects(out.data != nullptr, name, "out", "null", "it has a number for each segment");
  }
};
inline constexpr count_cover_t count_cover{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
