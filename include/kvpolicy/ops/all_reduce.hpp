// SPDX-License-Identifier: Apache-2.0
// Verb: sums numbers over tensor-parallel ranks.
#pragma once

#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Returns how many ranks an executor belongs to: its `ranks()`, or 1 if it has no such member. Every rank computes an
/// equal part of the heads, and ranks are in the order of the heads.
template <executor Executor>
[[nodiscard]] int ranks_of(Executor const& exec) {
  if constexpr (requires { exec.ranks(); }) {
    return exec.ranks();
  } else {
    return 1;
  }
}

namespace ops {

/// `all_reduce(exec, scores)` or `all_reduce(exec, data, count)` writes the sum over all ranks to every rank.
///
/// - in, out: the scores of a plan, which are contiguous in memory, or `count` floats. Entries that are not ranked have
///   the score -inf on all ranks, and keep it.
///
/// An executor that belongs to a group of ranks has the members `all_reduce(float*, std::size_t)` and `ranks()`. For an
/// executor without them the verb does nothing. All ranks must receive the same bits, because then they break ties
/// alike: the lower ordinal wins. A score that is not a sum over heads must be computed from sums that are already
/// reduced; see `residual`.
struct all_reduce_t {
  template <executor Executor>
  void operator()(Executor& exec, score_view scores) const {
    auto const rows = static_cast<std::size_t>(scores.segments());
    (*this)(exec, scores.row(0), rows* static_cast<std::size_t>(scores.lanes.capacity));
  }
  template <executor Executor>
  void operator()(Executor& exec, float* data, std::size_t count) const {
    if constexpr (requires { exec.all_reduce(data, count); }) {
      static_assert(
          requires { exec.ranks(); }, "kvpolicy: an executor that reduces over ranks says how many there are");
      exec.all_reduce(data, count);
    } else {
      static_cast<void>(exec), static_cast<void>(data), static_cast<void>(count);
    }
  }
};
inline constexpr all_reduce_t all_reduce{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
