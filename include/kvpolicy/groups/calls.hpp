// The calls of an engine for a model whose layers differ: each goes to every group that has a policy.
#pragma once

#include <cstddef>
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/groups/by_group.hpp>
#include <kvpolicy/layout/append.hpp>
#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/step/evict.hpp>
#include <optional>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// The states of all groups; none for a group without a policy.
template <class Executor>
struct group_states {
  std::vector<std::optional<state<Executor>>> of{};
  [[nodiscard]] state<Executor>& operator[](std::size_t group) { return *of[group]; }
  [[nodiscard]] state<Executor> const& operator[](std::size_t group) const { return *of[group]; }
};

/// The plans of all groups; none for a group without a policy.
template <class Executor>
struct group_plans {
  std::vector<std::optional<plan<Executor>>> of{};
  [[nodiscard]] plan<Executor>& operator[](std::size_t group) { return *of[group]; }
  [[nodiscard]] plan<Executor> const& operator[](std::size_t group) const { return *of[group]; }
};

/// Makes the states of all groups that have a policy.
///
/// - in: `policies` is one policy for all groups, or `by_group`.
/// - throws: as `make_state` of a cache, with the name of the group; `invalid_argument` if the groups disagree with the
///   model's layers, or if there are more or fewer policies than groups.
template <executor Executor, class Policy>
[[nodiscard]] group_states<Executor> make_state(Executor& exec, Policy const& policies, layer_groups const& all) {
  detail::check_policies("make_state", all, policies);
  group_states<Executor> made;
  made.of.resize(all.groups.size());
  detail::for_each_policy(all, policies, [&](std::size_t g, auto const& policy) {
    made.of[g].emplace(make_state(exec, policy, all.groups[g].entries));
  });
  return made;
}

/// Makes the plans of all groups that have a policy. `size` is how much each of them decides about at once.
///
/// - throws: as `make_state`.
template <executor Executor, class Policy, class... Appliers>
[[nodiscard]] group_plans<Executor> make_plan(Executor& exec, Policy const& policies, layer_groups const& all,
                                              at_once const& size, Appliers const&... hows) {
  detail::check_policies("make_plan", all, policies);
  group_plans<Executor> made;
  made.of.resize(all.groups.size());
  detail::for_each_policy(all, policies, [&](std::size_t g, auto const& policy) {
    made.of[g].emplace(make_plan(exec, policy, all.groups[g].entries, size, hows...));
  });
  return made;
}
/// The same for whole batches at once.
template <executor Executor, class Policy, class... Appliers>
[[nodiscard]] group_plans<Executor> make_plan(Executor& exec, Policy const& policies, layer_groups const& all,
                                              Appliers const&... hows) {
  return make_plan(exec, policies, all, at_once{}, hows...);
}

/// Adds new entries of one sequence to every group that has a state.
///
/// - throws: as `append` of a cache, with the name of the group. Then no group was changed.
template <executor Executor>
void append(Executor& exec, layer_groups& all, group_states<Executor>& states, append_request const& new_tokens) {
  std::size_t done = 0;
  try {
    for (; done < all.groups.size(); ++done) {
      if (!states.of[done]) continue;
      detail::in_group(all.groups[done], [&] { append(exec, all.groups[done].entries, states[done], new_tokens); });
    }
  } catch (...) {
    for (std::size_t g = 0; g < done; ++g) {  // the new entries are the last ones of these groups
      if (states.of[g]) truncate(exec, all.groups[g].entries, states[g], new_tokens.sequence, new_tokens.position);
    }
    throw;
  }
}

/// Commits drafts in every group that has a state: see `commit` of a cache.
template <executor Executor>
void commit(Executor& exec, layer_groups& all, group_states<Executor> const& states, int sequence, int tokens) {
  for (std::size_t g = 0; g < all.groups.size(); ++g) {
    if (!states.of[g]) continue;
    detail::in_group(all.groups[g], [&] { commit(exec, all.groups[g].entries, sequence, tokens); });
  }
}

/// Rolls a sequence back in every group that has a state: see `truncate` of a cache.
template <executor Executor>
void truncate(Executor& exec, layer_groups& all, group_states<Executor>& states, int sequence, int position) {
  for (std::size_t g = 0; g < all.groups.size(); ++g) {
    if (!states.of[g]) continue;
    detail::in_group(all.groups[g], [&] { truncate(exec, all.groups[g].entries, states[g], sequence, position); });
  }
}

/// Passes the signals of a forward to the recorders of every group that has a policy.
///
/// - in: `signals_of(g)` returns the `signals` of group g. Their tensors are those of its layers, and their lanes are
///   `all.groups[g].entries.lanes`, or some of its layers.
/// - throws: as `observe` of a cache, with the name of the group. The groups before it were observed.
template <executor Executor, class Policy, class SignalsOf>
void observe(Executor& exec, Policy const& policies, layer_groups const& all, SignalsOf const& signals_of,
             group_states<Executor>& states) {
  detail::for_each_policy(all, policies, [&](std::size_t g, auto const& policy) {
    observe(exec, policy, signals_of(static_cast<int>(g)), states[g]);
  });
}

/// Decides for every group that has a policy. `apply` then carries the decisions out.
///
/// - in: `signals_of`: as for `observe`.
/// - throws: as `decide` of a cache, with the name of the group. No cache was changed then.
template <executor Executor, class Policy, class SignalsOf>
void decide(Executor& exec, Policy const& policies, layer_groups const& all, SignalsOf const& signals_of,
            group_states<Executor> const& states, group_plans<Executor>& plans) {
  detail::for_each_policy(all, policies, [&](std::size_t g, auto const& policy) {
    decide(exec, policy, signals_of(static_cast<int>(g)), states[g], plans[g]);
  });
}

/// Carries the decisions of all groups out.
///
/// - in: `how(g)` returns the applier of group g, such as `compact{}`.
/// - throws: as `apply` of a cache, with the name of the group. The groups before it were changed.
template <executor Executor, class How>
void apply(Executor& exec, How const& how, group_plans<Executor> const& plans, layer_groups& all,
           group_states<Executor>& states) {
  for (std::size_t g = 0; g < all.groups.size(); ++g) {
    if (!plans.of[g]) continue;
    detail::in_group(all.groups[g],
                     [&] { apply(exec, how(static_cast<int>(g)), plans[g], all.groups[g].entries, states[g]); });
  }
}

/// Decides and carries the decision out, group by group: see `evict` of a cache.
template <executor Executor, class Policy, class SignalsOf, applier Applier>
void evict(Executor& exec, Policy const& policies, SignalsOf const& signals_of, Applier const& how, layer_groups& all,
           group_states<Executor>& states, group_plans<Executor>& plans) {
  detail::for_each_policy(all, policies, [&](std::size_t g, auto const& policy) {
    evict(exec, policy, signals_of(static_cast<int>(g)), how, all.groups[g].entries, states[g], plans[g]);
  });
}

}  // namespace KVPOLICY_NAMESPACE
