// SPDX-License-Identifier: Apache-2.0
// Host implementation of normalise: a worker normalises all blocks of a segment.
#pragma once

#include <algorithm>
#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
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
        how == normalising::rank ? rank(row + begin, some) : normalise(how, row + begin, some);
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

  /// Sorts keys of scores and of ordinals, the worst first, as one number.
  static void rank(float* row, int count) {
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
