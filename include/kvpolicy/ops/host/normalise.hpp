// SPDX-License-Identifier: Apache-2.0
// Host implementation of normalise: a worker normalises all blocks of a segment, or all lanes of a layer.
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
    int const together = blocks.of_layer ? scores.lanes.heads : 1;
    exec.for_each(scores.segments() / together, [&](int group, int) {
      auto const count_of = [&](int segment) { return scores.lanes.committed(scores.lane_of(segment)); };
      int const first = group * together;
      if (together > 1) {
        return normalise(how, blocks.less, [&](auto const& visit) {
          for (int segment = first; segment < first + together; ++segment) {
            float* const row = scores.row(segment);
            for (int e = blocks.begin, count = count_of(segment); e < count; ++e) visit(row[e]);
          }
        });
      }
      int const count = count_of(first);
      int const size = blocks.size == 0 ? count : blocks.size;
      float* const row = scores.row(first);
      for (int begin = blocks.begin; begin < count; begin += std::min(size, count - begin)) {
        int const some = std::min(size, count - begin);
        if (how == normalising::rank) {
          rank(row + begin, some);
        } else {
          normalise(how, blocks.less, [&](auto const& visit) {
            for (int e = begin; e < begin + some; ++e) visit(row[e]);
          });
        }
      }
    });
  }

 private:
  /// Normalises the scores that each(visit) visits, which are the same at each call.
  template <class Each>
  static void normalise(normalising how, int less, Each const& each) {
    detail::score_range all;
    each([&](float score) { all.add(score); });
    double seconds = 0;
    if (how == normalising::z || how == normalising::softmax) {
      each([&](float score) { seconds += all.second(how, score); });
    }
    float const by = all.divisor(how, seconds, less);
    each([&](float& score) { score = all.normalised(how, score, by); });
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
