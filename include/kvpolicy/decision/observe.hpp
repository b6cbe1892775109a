// SPDX-License-Identifier: Apache-2.0
// `observe` passes the signals of a forward to a policy's recorders.
#pragma once

#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/decision/decision_checks.hpp>
#include <kvpolicy/decision/forward_rows.hpp>
#include <kvpolicy/decision/scratch.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Refuses what `observe` refuses. Nothing is changed.
template <executor Executor, class Policy, class Given>
void refuse_observe_given(Executor& exec, Policy const& policy, Given const& in, state<Executor> const& state) {
  check_same_lanes("observe", "signals.lanes", in.lanes, state.lanes());
  in.check("observe", state.model());
  auto const recorders = recorders_of(policy.score);
  check_policy("observe", policy, state.model());
  check_state("observe", state, recorders);
  check_reserved("observe", exec,
                 scratch_to_observe<typename Executor::backend>(recorders, state.model(), state.lanes()));
  refuse_counts<typename Executor::backend>("observe", in.lanes);
  refuse_recorded_rows<typename Executor::backend>(recorders, "observe", in);
  if constexpr (reads_on_host<typename Executor::backend>) refuse_seen_rows("observe", in, state);
}
template <executor Executor, class Policy, class... Given>
void refuse_observe(Executor& exec, Policy const& policy, signals<Given...> const& in, state<Executor> const& state) {
  if constexpr (erased<score_of<Policy>>) {
    refuse_observe_given(exec, policy, policy.score.by_name(in), state);
  } else {
    refuse_observe_given(exec, policy, in, state);
  }
}

template <executor Executor, class Policy, class Given>
void observe_given(Executor& exec, Policy const& policy, Given const& in, state<Executor>& state) {
  sole_use const in_use("observe", exec);
  refuse_observe_given(exec, policy, in, state);
  auto const recorders = recorders_of(policy.score);
  counting_signals<Given> const counted("observe", exec, in, state.counted());
  record(exec, recorders, counted.get(), state);
  remember_rows<typename Executor::backend>(in, state);
}

}  // namespace detail

/// Passes the signals of a forward to the policy's recorders. It writes the state only, and reads committed entries
/// only.
///
/// Call it once for each forward and layer, after the new entries were appended; `in.lanes` has the layers. For a
/// selection call it after every `apply` as well.
/// - throws: `invalid_argument` if the state was made for other lanes or another policy, if a signal does not fit the
///   model or the lanes, if a count is out of its limits, or if the positions of `queries` do not ascend or are older
///   than the newest entry, because `queries` are those of the current forward. Then nothing was changed.
template <executor Executor, class Policy, class... Given>
  requires entry_decision<Policy> || page_decision<Policy>
void observe(Executor& exec, Policy const& policy, signals<Given...> const& in, state<Executor>& state) {
  if constexpr (detail::erased<detail::score_of<Policy>>) {
    detail::observe_given(exec, policy, policy.score.by_name(in), state);
  } else {
    detail::observe_given(exec, policy, in, state);
  }
}

}  // namespace KVPOLICY_NAMESPACE
