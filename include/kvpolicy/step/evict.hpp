// SPDX-License-Identifier: Apache-2.0
// `evict` decides and carries the decision out, in turns if the plan is smaller than the batch.
#pragma once

#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/layout/applier.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

namespace detail {

template <class Counters>
std::int64_t* numbers_of(Counters* counters) {
  static_assert(std::is_standard_layout_v<Counters> && sizeof(Counters) % sizeof(std::int64_t) == 0);
  return reinterpret_cast<std::int64_t*>(counters);
}
/// Adds counters, or copies them if `anew`.
template <executor Executor, class Counters>
void add_counters(Executor& exec, Counters* from, Counters* to, bool anew = false) {
  ops::add_counters(exec, numbers_of(from), static_cast<int>(sizeof(Counters) / sizeof(std::int64_t)), numbers_of(to),
                    anew);
}

}  // namespace detail

/// Calls visit(lanes) for each part of a batch that the plan decides about at once, in the order of lanes. `evict` does
/// so; an engine that applies decisions in another way calls `decide` for the lanes of each turn itself.
template <executor Executor, class Visit>
void for_each_turn(plan<Executor> const& of, lanes const& batch, Visit const& visit) {
  detail::for_each_turn(batch, of.turn(), visit);
}

/// Decides and carries the decision out: `decide` and `apply` in one call. If the batch is larger than what the plan
/// decides about at once, it does so turn by turn, some sequences (or some layers of one) at a time. The result is the
/// same as that of one decision about the whole batch.
///
/// - out: the plan holds the decision of the last turn. Its report, and `stats` unless it is null, are sums over all
///   turns.
/// - cost: that of `decide` and `apply`, and a few launches for each turn.
/// - throws: as `decide` and `apply`. Counts and arguments are checked before anything is changed. If a later turn
///   throws (a functor of the policy, or an applier that refuses what it finds in its tables), the turns before it are
///   carried out.
template <executor Executor, class Policy, class Signals, applier Applier>
void evict(Executor& exec, Policy const& policy, Signals const& in, Applier const& how, cache& all,
           state<Executor>& state, plan<Executor>& into, apply_stats* stats = nullptr) {
  detail::sole_use const in_use("evict", exec);
  lanes const batch = in.lanes;
  if (kvpolicy::segments(batch, into.decides()) <= into.segments()) {
    decide(exec, policy, in, state, into);
    return apply(exec, how, into, all, state, stats);
  }
  detail::check_cache("evict", all);
  detail::check_same_lanes("evict", "signals.lanes", batch, all.lanes);
  detail::refuse_counts<typename Executor::backend>("evict", batch);
  bool first = true;
  detail::for_each_turn(batch, into.turn(), [&](lanes const& turn) {
    decide(exec, policy, in.with(turn), state, into);
    cache part = all;
    part.lanes = turn;
    apply(exec, how, into, part, state, stats != nullptr ? first ? stats : into.turn_stats() : nullptr);
    if (!first && stats != nullptr) detail::add_counters(exec, into.turn_stats(), stats);
    detail::add_counters(exec, into.keep().report, into.total(), first);
    first = false;
  });
  detail::add_counters(exec, into.total(), into.keep().report, true);
}

}  // namespace KVPOLICY_NAMESPACE
