// SPDX-License-Identifier: Apache-2.0
// Verb: brings the scores of each segment to a common scale.
#pragma once

#include <array>
#include <cmath>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {

/// How the scores of a segment are normalised, x being one of its n scores:
///
///     sum       x / sum of x
///     min_max   (x - min) / (max - min)
///     z         (x - mean) / max(d, 1e-6)      d^2 = sum of (x - mean)^2 / n
///     softmax   e^(x - max) / sum of e^(x - max)
///
/// 0 / 0 is 0.
enum class normalising { sum, min_max, z, softmax };

[[nodiscard]] constexpr std::array<char const*, 4> names(normalising) { return {"sum", "min_max", "z", "softmax"}; }

namespace detail {

/// What is known of a segment's scores after one pass, and after a second one.
struct score_range {
  static constexpr float infinity = std::numeric_limits<float>::infinity();  // device code may not call the function
  double sum = 0;
  float low = infinity;
  float high = -infinity;
  int count = 0;

  [[nodiscard]] static KVPOLICY_HD bool takes_part(float score) { return score != -infinity; }
  KVPOLICY_HD void add(float score) {
    if (!takes_part(score)) return;
    sum += static_cast<double>(score);
    low = score < low ? score : low;
    high = score > high ? score : high;
    ++count;
  }
  /// The share of a score in the sum of the second pass; `sum` and `min_max` need none.
  [[nodiscard]] KVPOLICY_HD float second(normalising how, float score) const {
    if (!takes_part(score)) return 0;
    if (how == normalising::softmax) return std::exp(score - high);
    float const apart = score - mean();
    return apart * apart;
  }
  [[nodiscard]] KVPOLICY_HD float mean() const { return count > 0 ? static_cast<float>(sum / count) : 0; }
  /// What scores are divided by; `seconds` is the sum of the second pass.
  [[nodiscard]] KVPOLICY_HD float divisor(normalising how, double seconds) const {
    if (how == normalising::sum) return static_cast<float>(sum);
    if (how == normalising::min_max) return high - low;
    if (how == normalising::softmax) return static_cast<float>(seconds);
    auto const deviation = static_cast<float>(std::sqrt(seconds / (count > 0 ? count : 1)));
    return deviation < 1e-6f ? 1e-6f : deviation;
  }
  [[nodiscard]] KVPOLICY_HD float normalised(normalising how, float score, float by) const {
    if (!takes_part(score)) return score;
    float const above = how == normalising::sum       ? score
                        : how == normalising::softmax ? std::exp(score - high)
                                                      : score - (how == normalising::z ? mean() : low);
    return above == 0 && by == 0 ? 0 : above / by;
  }
};

}  // namespace detail

namespace ops {

/// `normalise(exec, how, scores)`: normalises the scores of each segment, in place.
///
/// - in, out: float32 [segments, entries]. Scores of -inf, such as those of entries that do not compete, take no part
///   and stay.
/// - NaN: makes all other scores of its segment NaN; with `min_max` it stays alone.
/// - range: sums are in double precision. Infinite scores have no meaning but -inf.
/// - cost: O(entries) per segment in two passes, three for `z` and `softmax`; no scratch.
/// - source: R-KV (softmax), TriAttention (z).
struct normalise_t : verb<normalise_t> {
  static constexpr auto name = "normalise";
  static constexpr void check(normalising, score_view const&) {}
};
inline constexpr normalise_t normalise{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
