// Verb: scores summed over tensor-parallel ranks.
#pragma once

#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `all_reduce(exec, scores)`: the sum over all ranks, on every rank.
///
/// - in, out: the scores of a plan, side by side in memory.
///
/// An executor that belongs to a group of ranks has a member `all_reduce(float*, std::size_t)`; without one this is the
/// identity. Every rank must then break ties alike, which the lower-ordinal rule does for equal sums.
struct all_reduce_t {
  template <executor Executor>
  void operator()(Executor& exec, score_view scores) const {
    if constexpr (requires { exec.all_reduce(scores.row(0), std::size_t{}); }) {
      auto const rows = static_cast<std::size_t>(scores.segments());
      exec.all_reduce(scores.row(0), rows * static_cast<std::size_t>(scores.who.bound));
    }
  }
};
inline constexpr all_reduce_t all_reduce{};

}  // namespace KVPOLICY_NAMESPACE::ops
