// SPDX-License-Identifier: Apache-2.0
// `make_state` and `make_plan`: an engine calls them once for a batch, before the first decision.
#pragma once

#include <kvpolicy/core/applier_columns.hpp>
#include <kvpolicy/decision/decision_checks.hpp>
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

/// Makes the state of one batch: the columns that the policy's recorders write, for all lanes of `in` and up to
/// `in.lanes.capacity` entries of each.
///
/// - `policy`: an eviction, an admission or a selection. Several policies of one cache can use one state only if it was
///   made for all of them together (`cache_policy`), because appliers, `append` and `truncate` update only the state
///   that they are given.
/// - `slack`: the number of entries by which recorded rows are longer than the bound, so that they can slide (see
///   `state::slide`).
/// - throws: `invalid_argument` if the cache or the policy is not sound.
/// - memory: `columns x lanes x (bound + slack)` elements for columns with one element an entry.
template <executor Executor, class Policy>
  requires entry_decision<Policy> || page_decision<Policy>
[[nodiscard]] state<Executor> make_state(Executor& exec, Policy const& policy, cache const& in, int slack = 0) {
  detail::check_batch("make_state", exec, policy, in);
  state<Executor> made = detail::state_of(exec, recorders_of(policy.score), in, slack);
  exec.reserve(detail::scratch_to_observe<typename Executor::backend>(recorders_of(policy.score), in.shape, in.lanes));
  return made;
}

/// The same with columns that appliers keep for themselves (see `applier`). Name the appliers that will carry decisions
/// out, such as `kv::compact_rerotated{}`, as for `make_plan`.
///
/// - throws: also `invalid_argument` if an applier does not fit the cache.
template <executor Executor, class Policy, class First, class... Appliers>
  requires((entry_decision<Policy> || page_decision<Policy>) && std::is_class_v<First>)
[[nodiscard]] state<Executor> make_state(Executor& exec, Policy const& policy, cache const& in, First const& first,
                                         Appliers const&... others) {
  state<Executor> made = make_state(exec, policy, in);
  auto const add = [&](auto const& how) {
    for (column const& each : detail::columns_of_applier(how, in)) made.add(each);
  };
  add(first), (add(others), ...);
  return made;
}

/// Makes a plan: the memory for scores and keep sets.
///
/// - `size`: how much the plan decides about at once; without it, the whole batch. `evict` decides about larger batches
///   in turns, and `decide` refuses them.
/// - appliers (the last arguments): the appliers that will carry the decisions out, such as `kv::compact{}`. Their
///   scratch memory is reserved now. Later calls then allocate nothing while no count exceeds the bound; `apply` with
///   an applier that was not listed here reserves its scratch at the call.
/// - throws: as `make_state`.
/// - memory: 8 bytes x segments x bound, and 4 bytes x bound for each row that the scorer needs beside its scores
///   and the budget's allotter beside them; 4 bytes x lanes if the budget allots shares, and as many if entries stay or
///   go in blocks, a part of them goes, or the scorer reads the budget.
template <executor Executor, entry_decision Policy, class... Appliers>
[[nodiscard]] plan<Executor> make_plan(Executor& exec, Policy const& policy, cache const& in, at_once const& size,
                                       Appliers const&...) {
  using backend = typename Executor::backend;
  detail::check_batch("make_plan", exec, policy, in);
  auto const most =
      detail::largest_turn("make_plan", in.lanes, policy.score.decides, detail::scope_at_once(policy.budget), size);
  cache turn = in;
  turn.lanes = detail::first_turn(in.lanes, most);
  exec.reserve(detail::scratch_to_decide<backend>(policy, in.shape, turn.lanes));
  exec.reserve(detail::scratch_to_apply<backend, Appliers...>(turn));
  plan<Executor> made(exec, in.lanes, policy.score.decides, detail::spare_rows_of(policy, turn.lanes, in.shape),
                      entry_bytes(in), most);
  detail::visit_kinds_of_rows_of_scorer(
      policy.score, [&](int kind) { made.counted().add(exec, kind, in.lanes.sequences, in.lanes.capacity); });
  auto const of = detail::resolve(policy);
  if (of.allots) made.add_shares(exec);
  if (of.needs_kept()) made.add_kept(exec);
  if (in.where.kind == locating::slot_map) made.look_up_in(in.where.table);
  return made;
}
/// The same for the whole batch at once.
template <executor Executor, entry_decision Policy, class... Appliers>
[[nodiscard]] plan<Executor> make_plan(Executor& exec, Policy const& policy, cache const& in, Appliers const&... hows) {
  return make_plan(exec, policy, in, at_once{}, hows...);
}

}  // namespace KVPOLICY_NAMESPACE
