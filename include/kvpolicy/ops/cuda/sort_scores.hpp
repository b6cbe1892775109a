// SPDX-License-Identifier: Apache-2.0
// Device implementation of sort_scores: a bitonic network in the memory of the scores, one block of threads for each
// segment.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/radix_key.hpp>
#include <kvpolicy/ops/sort_scores.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

struct sort_scores_kernel {
  score_view scores;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    std::int64_t const count = scores.lanes.committed(scores.lane_of(block.index()));
    float* const row = scores.row(block.index());
    // Runs of `size` scores become sorted out of two halves: the first step compares the first with the last, the
    // second with the one before, and so on; the others compare scores that are a half, a quarter, ... apart.
    for (std::int64_t size = 2; size < 2 * count; size *= 2) {
      for (std::int64_t step = size / 2; step > 0; step /= 2) {
        bool const mirrors = step == size / 2;
        for (std::int64_t pair = block.thread();; pair += block.threads()) {
          std::int64_t const first = pair / step * 2 * step + pair % step;
          if (first >= count) break;
          std::int64_t const second = mirrors ? first ^ (size - 1) : first + step;
          if (second >= count) continue;  // behind the last score there are lower ones
          float const a = row[first], b = row[second];
          if (radix_key(b) > radix_key(a)) row[first] = b, row[second] = a;
        }
        block.sync();
      }
    }
  }
};

}  // namespace detail

/// Takes one launch.
template <kernel_backend Backend>
struct implementation<ops::sort_scores_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, score_view const& scores) {
    exec.launch(launch_shape{scores.segments(), exec.threads().entry, 0}, detail::sort_scores_kernel{scores});
  }
};

}  // namespace KVPOLICY_NAMESPACE
