// Host implementation of pool.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <algorithm>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/pool.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

inline float pooled(pooling const& by, float const* scores, int count, int at) {
  int const reach = by.width / 2;
  int const first = std::max(0, at - reach);
  int const last = std::min(count - 1, at + reach);
  float value = scores[first];
  for (int e = first + 1; e <= last; ++e) {
    if (by.how == pooling::kind::avg) {
      value += scores[e];
    } else if (value == value && !(scores[e] <= value)) {  // higher, or NaN
      value = scores[e];
    }
  }
  return by.how == pooling::kind::avg ? value / static_cast<float>(by.width) : value;
}

}  // namespace detail

template <>
struct implementation<ops::pool_t, host> {
  static constexpr bool provided = true;

  static std::size_t scratch(shape const&, int bound) {
    return detail::scratch_of<float>(static_cast<std::size_t>(bound));
  }

  static void run(host_executor& exec, pooling const& by, score_view const& scores, int tail) {
    if (by.how == pooling::kind::none) return;
    exec.for_each(scores.segments(), [&](int segment, int worker) {
      int const count = std::max(0, scores.lanes.committed(scores.lane_of(segment)) - tail);
      float* const row = scores.row(segment);
      float* const before = detail::scratch_arena(exec.scratch(worker)).take<float>(static_cast<std::size_t>(count));
      std::copy_n(row, count, before);
      for (int e = 0; e < count; ++e) row[e] = detail::pooled(by, before, count, e);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
