// What an engine makes once for a batch: the state of a policy's recorders, and the plan of its decisions.
#pragma once

#include <kvpolicy/decision/check.hpp>
#include <kvpolicy/decision/scratch.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

template <executor Executor, class Policy>
void check_batch(char const* call, Executor& exec, Policy const& policy, cache const& in) {
  check_policy(call, policy, in.shape);
  check_cache(call, in);
  check_reach(call, exec, in);
}

}  // namespace detail

/// The state of one batch: the columns of the policy's recorders, for all the lanes of `in`, up to `in.lanes.bound`
/// entries.
///
/// - `policy`: an eviction, an admission or a selection. One state serves several policies of a cache only if it was
///   made for them together (`cache_policy`): appliers, append and truncate keep true what they are given.
/// - `slack`: entries by which rows of recorded numbers are longer, so that they can slide (see `state`).
/// - throws: `invalid_argument` if the cache or the policy is not sound. Memory: `columns x lanes x bound`.
template <executor Executor, class Policy>
  requires entry_decision<Policy> || page_decision<Policy>
[[nodiscard]] state<Executor> make_state(Executor& exec, Policy const& policy, cache const& in, int slack = 0) {
  detail::check_batch("make_state", exec, policy, in);
  state<Executor> made = detail::state_of(exec, recorders_of(policy.score), in, slack);
  exec.reserve(detail::scratch_to_observe<typename Executor::backend>(recorders_of(policy.score), in.shape, in.lanes));
  return made;
}

/// The plan of one batch: memory for its scores and keep sets.
///
/// - `appliers`: those that will carry its decisions out (`kv::compact{}`, `kv::list_rewrite{...}`). Nothing allocates
///   after this while counts stay below the bound. `apply` of an applier that was not named reserves what it needs.
/// - throws: as make_state. Memory: 8 bytes x segments x bound.
template <executor Executor, entry_decision Policy, class... Appliers>
[[nodiscard]] plan<Executor> make_plan(Executor& exec, Policy const& policy, cache const& in, Appliers const&...) {
  using backend = typename Executor::backend;
  detail::check_batch("make_plan", exec, policy, in);
  exec.reserve(detail::scratch_to_decide<backend, Policy>(in.shape, in.lanes));
  exec.reserve(detail::scratch_to_apply<backend, Appliers...>(in));
  return plan<Executor>(exec, in.lanes, policy.score.decides, detail::spare_rows(policy.score, in.lanes, in.shape),
                        entry_bytes(in));
}

}  // namespace KVPOLICY_NAMESPACE
