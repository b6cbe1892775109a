// SPDX-License-Identifier: Apache-2.0
// Verb: brings the scores of each segment to a common scale.
#pragma once

#include <array>
#include <cmath>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {

/// How the scores of a segment, or of a block of its entries, are normalised, x being one of n scores:
///
///     sum       x / sum of x
///     min_max   (x - min) / (max - min)
///     z         (x - mean) / max(d, 1e-6)      d^2 = sum of (x - mean)^2 / n, or over n - 1
///     softmax   e^(x - max) / sum of e^(x - max)
///     rank      the number of scores that are worse than x / n
///
/// 0 / 0 is 0. Of equal scores that of the higher ordinal is worse.
enum class normalising { sum, min_max, z, softmax, rank };

[[nodiscard]] constexpr std::array<char const*, 5> names(normalising) {
  return {"sum", "min_max", "z", "softmax", "rank"};
}

/// Blocks of entries that are normalised each by itself: those of the ordinals [begin + b size, begin + (b + 1) size).
/// The last one may be shorter, and the entries before `begin` keep their scores.
struct normalised_blocks {
  static constexpr int most_ranked = 4096;  ///< entries of a block of ranks
  int size = 0;                             ///< entries of a block; 0: all from `begin` on are one
  int begin = 0;
  bool of_layer = false;  ///< the scores of all lanes of a layer are one block
  int less = 0;           ///< z divides by n - less, where that is above 0: 1 for the deviation of a sample

  /// How many blocks a row of so many entries has.
  [[nodiscard]] KVPOLICY_HD constexpr int count(int entries) const {
    int const there = entries - begin;
    return there <= 0 ? 0 : size == 0 ? 1 : (there - 1) / size + 1;
  }
};

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
  [[nodiscard]] KVPOLICY_HD double second(normalising how, float score) const {
    if (!takes_part(score)) return 0;
    if (how == normalising::softmax) return static_cast<double>(std::exp(score - high));
    double const apart = apart_from_mean(score);
    return apart * apart;
  }
  [[nodiscard]] KVPOLICY_HD double apart_from_mean(float score) const {
    return static_cast<double>(score) - sum / (count > 0 ? count : 1);
  }
  /// What scores are divided by; `seconds` is the sum of the second pass.
  [[nodiscard]] KVPOLICY_HD float divisor(normalising how, double seconds, int less) const {
    if (how == normalising::sum) return static_cast<float>(sum);
    if (how == normalising::min_max) return high - low;
    if (how == normalising::softmax) return static_cast<float>(seconds);
    auto const deviation = static_cast<float>(std::sqrt(seconds / (count > less ? count - less : 1)));
    return deviation < 1e-6f ? 1e-6f : deviation;
  }
  [[nodiscard]] KVPOLICY_HD float normalised(normalising how, float score, float by) const {
    if (!takes_part(score)) return score;
    float const above = how == normalising::sum       ? score
                        : how == normalising::softmax ? std::exp(score - high)
                        : how == normalising::z       ? static_cast<float>(apart_from_mean(score))
                                                      : score - low;
    return above == 0 && by == 0 ? 0 : above / by;
  }
};

}  // namespace detail

namespace ops {

/// `normalise(exec, how, scores, blocks)`: normalises the scores of each segment, of each of its blocks, or of all
/// lanes of a layer together, in place.
///
/// - in, out: float32 [segments, entries]. Scores of -inf, such as those of entries that do not compete, take no part
///   and stay.
/// - NaN: makes all other scores of its segment or block NaN. With `min_max` and `rank` it stays alone; it is worse
///   than every number.
/// - range: sums are in double precision. Infinite scores have no meaning but -inf; with `rank` +inf is a number.
/// - cost: O(entries) per segment in two passes, three for `z` and `softmax`; no scratch. `rank` sorts each block on
///   the host, and compares all of its pairs on a device.
/// - throws: `invalid_argument` if a number of `blocks` is negative, if ranks are not of blocks of 1 to 4096 entries,
///   or if layers have blocks, or segments that are not lanes.
/// - source: R-KV (softmax), TriAttention (z), CurDKV (blocks), LagKV (rank), Compactor (layers).
struct normalise_t : verb<normalise_t> {
  static constexpr auto name = "normalise";
  template <executor Executor>
  void operator()(Executor& exec, normalising how, score_view const& scores, normalised_blocks blocks = {}) const {
    verb<normalise_t>::operator()(exec, how, scores, blocks);  // parameters have types, so that blocks may be in braces
  }
  static void check(normalising how, score_view const& scores, normalised_blocks const& blocks) {
    expects(blocks.size >= 0, name, "blocks.size", blocks.size, "a count cannot be negative");
    expects(blocks.less >= 0, name, "blocks.less", blocks.less, "a count cannot be negative");
    if (blocks.of_layer) {
      expects(blocks.size == 0, name, "blocks.size", blocks.size, "all scores of a layer are one block");
      expects(scores.decides == granularity::lane, name, "scores.decides", static_cast<int>(scores.decides),
              "lanes of a layer are normalised together");
    }
    expects(blocks.begin >= 0, name, "blocks.begin", blocks.begin, "ordinals begin at 0");
    expects(how != normalising::rank || (blocks.size >= 1 && blocks.size <= blocks.most_ranked), name, "blocks.size",
            blocks.size, "a block of ranks has 1 to 4096 entries");
  }
};
inline constexpr normalise_t normalise{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
