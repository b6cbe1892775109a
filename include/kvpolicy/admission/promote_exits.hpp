// SPDX-License-Identifier: Apache-2.0
// Decides about the entries that leave a window and copies those that are admitted, in few launches where the backend
// and the policy's parts can.
#pragma once

#include <kvpolicy/admission/exit_plan.hpp>
#include <kvpolicy/core/dual_cache.hpp>
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/ops/append_rows.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::detail {

/// True if a policy looks at each entry alone, and what it does so with is known when it is compiled.
template <class Policy, class SignalSet>
inline constexpr bool decides_alone = [] {
  using pick = std::remove_cvref_t<decltype(pick_of(std::declval<Policy const&>()))>;
  using budget = std::remove_cvref_t<decltype(std::declval<Policy const&>().budget)>;
  return threshold<pick> && !erased<pick> && !allots<budget> && scores_by_entry<score_of<Policy>, SignalSet>;
}();

/// True if a batch has all slots of a state. Only then its columns may slide, because that shifts the rows of every
/// slot.
template <class State>
bool has_all_slots(lanes const& batch, State const& of) {
  return batch.slots == nullptr && batch.sequences == of.lanes().sequences;
}

/// How entries leave the window where recorded columns move.
template <executor Executor>
oldest_entries leaving_of(dual_cache const& both, dual_state<Executor>& of) {
  lanes const& batch = both.window.lanes;
  return {both.oldest,
          has_all_slots(batch, of.window) ? of.window.slid() : 0,
          {of.window.epochs(batch.slots), of.pages.epochs(both.pages.entries.lanes.slots)}};
}

/// Where entries that leave a window go.
template <executor Executor>
struct promotion_target {
  cache const& window;
  std::span<recorded_column const> of_window;  ///< the window's recorded columns
  paged_lanes& pages;
  std::span<recorded_column const> of_pages;
  oldest_entries const& dropped;
  plan<Executor>& decided;
  int* exits;
  promotion_stats* stats;
};

/// Counts the entries that leave, decides about them, promotes those that are kept and drops all, if the backend can do
/// it together. False: nothing was done, and the verbs are called one after the other.
template <executor Executor, class Policy, class SignalSet>
[[nodiscard]] bool promote_together([[maybe_unused]] Executor& exec, [[maybe_unused]] Policy const& policy,
                                    [[maybe_unused]] SignalSet const& seen, [[maybe_unused]] ring_request const& asked,
                                    [[maybe_unused]] promotion_target<Executor> const& to) {
  using promoting = implementation<ops::append_rows_t, typename Executor::backend>;
  if constexpr (decides_alone<Policy, SignalSet> && requires { promoting::takes_exits(to.window.lanes, asked); }) {
    if (!promoting::takes_exits(to.window.lanes, asked)) return false;
    keep_set const keep = to.decided.keep_storage(seen.lanes);
    refuse_data(policy.score, exec, seen);
    auto const limit = in_entries(policy.budget, to.window.shape, to.decided.entry_bytes());
    with_rule(policy, seen, limit, [&](auto const& rule) {
      promoting::promote_exits(
          exec, exit_decision{asked, to.exits, to.decided.scores(seen.lanes), policy.score.entry_scores(seen), rule},
          {&keep, &to.window, to.of_window}, to.dropped, to.pages, to.of_pages, policy.cap, to.stats);
    });
    to.decided.publish(keep);
    return true;
  } else {
    return false;
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
