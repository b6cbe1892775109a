// SPDX-License-Identifier: Apache-2.0
// Verb: reduces numbers over tensor-parallel ranks.
#pragma once

#include <cstddef>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <string>

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

/// `all_reduce(exec, scores)` or `all_reduce(exec, data, count)` writes the sum over all ranks to every rank, and with
/// `reduction::max` behind these arguments the maximum.
///
/// - in, out: the scores of a plan, which are contiguous in memory, or `count` floats. Entries that are not ranked have
///   the score -inf on all ranks, and keep it.
/// - NaN: the sum with a NaN is NaN. So is the maximum, if the executor's reduction passes NaN on: that of `ncclMax`
///   leaves out a NaN where another rank has a number.
/// - throws: `invalid_argument` if the reduction is neither a sum nor a maximum, or is a maximum that an executor of
///   several ranks cannot make.
///
/// An executor that belongs to a group of ranks has the members `all_reduce(float*, std::size_t)`, a sum, and
/// `ranks()`. It may have `all_reduce_max(float*, std::size_t)`. For an executor without them the verb does nothing.
/// All ranks must receive the same bits, because then they break ties alike: the lower ordinal wins. A maximum is the
/// same for any number of ranks, and a sum is rounded. A score that is not a sum or maximum over heads must be computed
/// from sums that are already reduced; see `residual`.
struct all_reduce_t {
  template <executor Executor>
  void operator()(Executor& exec, score_view scores, reduction how = reduction::sum) const {
    auto const rows = static_cast<std::size_t>(scores.segments());
    (*this)(exec, scores.row(0), rows* static_cast<std::size_t>(scores.lanes.capacity), how);
  }
  template <executor Executor>
  void operator()(Executor& exec, float* data, std::size_t count, reduction how = reduction::sum) const {
    refuse("all_reduce", exec, how);
    if (how == reduction::max) {
      if constexpr (requires { exec.all_reduce_max(data, count); }) exec.all_reduce_max(data, count);
    } else if constexpr (requires { exec.all_reduce(data, count); }) {
      static_assert(
          requires { exec.ranks(); }, "kvpolicy: an executor that reduces over ranks says how many there are");
      exec.all_reduce(data, count);
    }
  }

  /// Refuses a reduction that is neither a sum nor a maximum, and a maximum over the ranks of an executor that can only
  /// sum.
  template <executor Executor>
  static void refuse(char const* call, Executor const& exec, reduction how) {
    expects(how == reduction::sum || how == reduction::max, call, "reduction", to_string(how),
            "ranks are reduced by sum or by max");
    constexpr bool finds_max = requires(Executor& one, float* data) { one.all_reduce_max(data, std::size_t{}); };
    expects(how == reduction::sum || finds_max || ranks_of(exec) == 1, call, "reduction", "max", [&] {
      return "the executor has no member all_reduce_max, and the heads are on " + std::to_string(ranks_of(exec)) +
             " ranks";
    });
  }
};
inline constexpr all_reduce_t all_reduce{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
