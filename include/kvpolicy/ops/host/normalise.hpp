// SPDX-License-Identifier: Apache-2.0
// Host implementation of normalise: a worker normalises all blocks of a segment.
#pragma once

#include <algorithm>
#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/ranks.hpp>
#include <kvpolicy/ops/normalise.hpp>
#include <kvpolicy/ops/radix_key.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::normalise_t, host> {
  static void run(host_executor& exec, normalising how, score_view const& scores, normalised_blocks const& blocks) {
    exec.for_each(scores.segments(), [&](int segment, int) {
      int const count = scores.lanes.committed(scores.lane_of(segment));
      int const size = blocks.size == 0 ? count : blocks.size;
      float* const row = scores.row(segment);
      for (int begin = blocks.begin; begin < count; begin += std::min(size, count - begin)) {
        int const some = std::min(size, count - begin);
        how == normalising::rank ? rank(exec.simd_level(), row + begin, some) : normalise(how, row + begin, some);
      }
    });
  }

 private:
  static void normalise(normalising how, float* row, int count) {
    detail::score_range all;
    for (int e = 0; e < count; ++e) all.add(row[e]);
    double seconds = 0;
    if (how == normalising::z || how == normalising::softmax) {
      for (int e = 0; e < count; ++e) seconds += static_cast<double>(all.second(how, row[e]));
    }
    float const by = all.divisor(how, seconds);
    for (int e = 0; e < count; ++e) row[e] = all.normalised(how, row[e], by);
  }

  static constexpr int few = 512;  ///< scores that are compared with each other, and not sorted

  /// Replaces the scores of a block that take part by their ranks.
  static void rank(isa level, float* row, int count) {
    auto const worse = detail::ranks_of_isa[level].worse;
    count <= few&& worse != nullptr ? compare(worse, row, count) : sort(row, count);
  }
  static bool is_nan(float score) { return detail::radix_key(score) == detail::nan_key; }

  /// A NaN is compared as -inf, which is below all scores that take part.
  static void compare(void (*worse)(float const*, int, int*), float* row, int count) {
    float of[few + 16];
    int below[few], ranked = 0, next = 0;
    for (int e = 0; e < count; ++e) {
      if (detail::score_range::takes_part(row[e]))
        of[ranked++] = is_nan(row[e]) ? -detail::score_range::infinity : row[e];
    }
    std::fill_n(of + ranked, 16, std::numeric_limits<float>::quiet_NaN());
    worse(of, ranked, below);
    for (int e = 0; e < count; ++e) {
      if (!detail::score_range::takes_part(row[e])) continue;
      int const rank = below[next++];
      if (!is_nan(row[e])) row[e] = static_cast<float>(rank) / static_cast<float>(ranked);
    }
  }

  /// Sorts keys of scores and of ordinals, the worst first, as one number.
  static void sort(float* row, int count) {
    std::uint64_t keys[normalised_blocks::most_ranked];
    int ranked = 0;
    for (int e = 0; e < count; ++e) {
      if (!detail::score_range::takes_part(row[e])) continue;
      keys[ranked++] = std::uint64_t{detail::radix_key(row[e])} << 32 | ~static_cast<std::uint32_t>(e);
    }
    std::sort(keys, keys + ranked);
    for (int i = 0; i < ranked; ++i) {
      float& score = row[~static_cast<std::uint32_t>(keys[i])];
      if (keys[i] >> 32 != detail::nan_key) score = static_cast<float>(i) / static_cast<float>(ranked);
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
