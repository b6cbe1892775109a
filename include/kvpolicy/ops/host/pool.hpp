// SPDX-License-Identifier: Apache-2.0
// Host implementation of pool.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/pool.hpp>
#include <kvpolicy/ops/pool.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Pools entries [begin, end) of `count` scores.
inline void pool_part(host_executor const& exec, pooling const& by, float const* scores, int count, int begin, int end,
                      float* to) {
  int const reach = std::min(by.width / 2, count);
  pool_kernels const& kernels = pool_of_isa[exec.simd_level()];
  int e = begin;
  for (; e < std::min(reach, end); ++e) to[e] = pooled(by, scores, count, e);
  auto const inside = by.how == pooling::kind::avg ? kernels.mean : kernels.maximum;
  int const last = std::min(end, count - reach);
  if (last > e) e = inside(by, scores, e, last, to);
  for (; e < end; ++e) to[e] = pooled(by, scores, count, e);
}

/// Pools the first `count` scores of a row in place. A block of them and its neighbours are copied to `window` at a
/// time, so that they are in the first-level cache; `window` has `count` floats. Wide pools copy the whole row.
inline void pool_row(host_executor const& exec, pooling const& by, float* row, int count, float* window) {
  constexpr int most = 2048;
  int const reach = by.width / 2;
  int const block = reach > most / 8 || count < 2 * most ? std::max(count, 1) : most;
  int known = 0;  // entries below this one are in the window, or pooled
  for (int begin = 0; begin < count; begin += block) {
    int const end = std::min(count, begin + block);
    int const from = std::max(0, begin - reach);
    int const to = end + std::min(reach, count - end);
    int const carried = known - from;
    if (begin > 0) std::copy_n(window + (known - std::max(0, begin - block - reach)) - carried, carried, window);
    std::copy(row + known, row + to, window + carried);
    known = to;
    pool_part(exec, by, window, to - from, begin - from, end - from, row + from);
  }
}

}  // namespace detail

template <>
struct implementation<ops::pool_t, host> {
  static std::size_t scratch(shape const&, int bound) {
    return detail::scratch_of<float>(static_cast<std::size_t>(bound));
  }

  static void run(host_executor& exec, pooling const& by, score_view const& scores, int tail) {
    if (by.how == pooling::kind::none) return;
    exec.for_each(scores.segments(), [&](int segment, int worker) {
      int const count = std::max(0, scores.lanes.committed(scores.lane_of(segment)) - tail);
      float* const row = scores.row(segment);
      auto const window = detail::scratch_arena(exec.scratch(worker)).take<float>(static_cast<std::size_t>(count));
      detail::pool_row(exec, by, row, count, window);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
