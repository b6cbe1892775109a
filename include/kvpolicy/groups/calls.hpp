// SPDX-License-Identifier: Apache-2.0
// The calls of an engine for a model whose layers differ: each goes to every group that has a policy.
#pragma once

#include <cstddef>
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/groups/by_group.hpp>
#include <kvpolicy/layout/append.hpp>
#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/step/evict.hpp>
#include <optional>
#include <string>
#include <type_traits>
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

namespace detail {

/// Refuses states or plans of other groups, and those of other policies.
template <class Made>
void check_made(char const* call, char const* name, layer_groups const& all, Made const& made) {
  expects(made.of.size() == all.groups.size(), call, name, made.of.size(),
          [&] { return "the model has " + std::to_string(all.groups.size()) + " groups"; });
}
template <class Policy, class Made>
void check_made(char const* call, char const* name, layer_groups const& all, Policy const& policies, Made const& made) {
  check_policies(call, all, policies);
  check_made(call, name, all, made);
  std::vector<bool> touched(all.groups.size());
  for_each_policy(all, policies, [&](std::size_t g, auto const&) { touched[g] = true; });
  for (std::size_t g = 0; g < all.groups.size(); ++g) {
    expects(
        touched[g] == made.of[g].has_value(), call, name,
        [&] { return std::string(touched[g] ? "none" : "one").append(" for group ").append(all.groups[g].name); },
        "they were made for policies that leave other groups alone");
  }
}

/// Calls visit(index) for each group that has a state.
template <class States, class Visit>
void for_each_state(char const* call, layer_groups const& all, States const& states, Visit const& visit) {
  check_groups(call, all);
  check_made(call, "states", all, states);
  for (std::size_t g = 0; g < all.groups.size(); ++g) {
    if (states.of[g]) in_group(all.groups[g], [&] { visit(g); });
  }
}

}  // namespace detail

/// Makes the states of all groups that have a policy.
///
/// - in: `policies` is one policy for all groups, or `by_group`. `hows` are the appliers: see `make_state` of a cache.
/// - throws: as `make_state` of a cache, with the name of the group; `invalid_argument` if the groups disagree with the
///   model's layers, or if there are more or fewer policies than groups.
template <executor Executor, class Policy, class... Appliers>
[[nodiscard]] group_states<Executor> make_state(Executor& exec, Policy const& policies, layer_groups const& all,
                                                Appliers const&... hows) {
  detail::check_policies("make_state", all, policies);
  group_states<Executor> made;
  made.of.resize(all.groups.size());
  detail::for_each_policy(all, policies, [&](std::size_t g, auto const& policy) {
    made.of[g].emplace(make_state(exec, policy, all.groups[g].entries, hows...));
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
  detail::sole_use const in_use("append", exec);
  detail::for_each_state("append", all, states, [&](std::size_t g) {
    cache const& one = all.groups[g].entries;
    detail::check_append("append", one, states[g], new_tokens);
    detail::refuse_verb<ops::append_entries_t>(exec, one.lanes, new_tokens);
  });
  detail::for_each_state("append", all, states, [&](std::size_t g) {
    detail::append_checked(exec, all.groups[g].entries, states[g], new_tokens);
  });
}

/// Commits drafts in every group that has a state: see `commit` of a cache.
///
/// - throws: as `commit` of a cache, with the name of the group. Then no group was changed.
template <executor Executor>
void commit(Executor& exec, layer_groups& all, group_states<Executor> const& states, int sequence, int tokens) {
  detail::sole_use const in_use("commit", exec);
  detail::for_each_state("commit", all, states, [&](std::size_t g) {
    cache const& one = all.groups[g].entries;
    detail::check_commit(one, sequence);
    detail::refuse_verb<ops::commit_entries_t>(exec, one.lanes, sequence, tokens);
  });
  detail::for_each_state("commit", all, states,
                         [&](std::size_t g) { commit(exec, all.groups[g].entries, sequence, tokens); });
}

/// Rolls a sequence back in every group that has a state: see `truncate` of a cache.
///
/// - throws: as `truncate` of a cache, with the name of the group. Then no group was changed.
template <executor Executor>
void truncate(Executor& exec, layer_groups& all, group_states<Executor>& states, int sequence, int position) {
  detail::sole_use const in_use("truncate", exec);
  detail::for_each_state("truncate", all, states, [&](std::size_t g) {
    detail::check_truncate(exec, all.groups[g].entries, states[g], sequence, position);
  });
  detail::for_each_state("truncate", all, states, [&](std::size_t g) {
    detail::truncate_checked(exec, all.groups[g].entries, states[g], sequence, position);
  });
}

/// Passes the signals of a forward to the recorders of every group that has a policy.
///
/// - in: `signals_of(g)` returns the `signals` of group g. Their tensors are those of its layers, and their lanes are
///   `all.groups[g].entries.lanes`, or some of its layers. It is asked twice: all groups are checked before one is
///   observed.
/// - throws: as `observe` of a cache, with the name of the group. Then no group was observed.
template <executor Executor, class Policy, class SignalsOf>
void observe(Executor& exec, Policy const& policies, layer_groups const& all, SignalsOf const& signals_of,
             group_states<Executor>& states) {
  detail::sole_use const in_use("observe", exec);
  detail::check_made("observe", "states", all, policies, states);
  for (bool const refusing : {true, false}) {
    detail::for_each_policy(all, policies, [&](std::size_t g, auto const& policy) {
      auto const in = signals_of(static_cast<int>(g));
      if (refusing) return detail::refuse_observe(exec, policy, in, states[g]);
      observe(exec, policy, in, states[g]);
    });
  }
}

/// Decides for every group that has a policy. `apply` then carries the decisions out.
///
/// - in: `signals_of`: as for `observe`.
/// - throws: as `decide` of a cache, with the name of the group. No cache was changed then.
template <executor Executor, class Policy, class SignalsOf>
void decide(Executor& exec, Policy const& policies, layer_groups const& all, SignalsOf const& signals_of,
            group_states<Executor> const& states, group_plans<Executor>& plans) {
  detail::sole_use const in_use("decide", exec);
  detail::check_made("decide", "states", all, policies, states);
  detail::check_made("decide", "plans", all, policies, plans);
  detail::for_each_policy(all, policies, [&](std::size_t g, auto const& policy) {
    decide(exec, policy, signals_of(static_cast<int>(g)), states[g], plans[g]);
  });
}

/// Carries the decisions of all groups out.
///
/// - in: `how(g)` returns the applier of group g, such as `compact{}`.
/// - throws: as `apply` of a cache, with the name of the group. Then no group was changed.
template <executor Executor, class How>
void apply(Executor& exec, How const& how, group_plans<Executor> const& plans, layer_groups& all,
           group_states<Executor>& states) {
  detail::sole_use const in_use("apply", exec);
  detail::check_made("apply", "states", all, states);
  detail::check_made("apply", "plans", all, plans);
  for (std::size_t g = 0; g < all.groups.size(); ++g) {
    expects(
        plans.of[g].has_value() == states.of[g].has_value(), "apply", "plans",
        [&] { return std::string(plans.of[g] ? "one" : "none").append(" for group ").append(all.groups[g].name); },
        "plans and states were made for the same policies");
    if (!plans.of[g]) continue;
    detail::in_group(all.groups[g], [&] {  // everything is refused before anything is changed
      static_cast<void>(
          detail::checked_keep_set(exec, how(static_cast<int>(g)), plans[g], all.groups[g].entries, states[g]));
    });
  }
  for (std::size_t g = 0; g < all.groups.size(); ++g) {
    if (!plans.of[g]) continue;
    detail::in_group(all.groups[g],
                     [&] { apply(exec, how(static_cast<int>(g)), plans[g], all.groups[g].entries, states[g]); });
  }
}

/// Decides and carries the decision out, group by group: see `evict` of a cache. All groups have one applier; where
/// appliers have tables of their group (`mask`), call `decide` and `apply`.
///
/// - throws: as `evict` of a cache, with the name of the group. No group was changed, unless a plan is smaller than its
///   batch, so that the groups are decided about in turns: then the groups before it were changed.
template <executor Executor, class Policy, class SignalsOf, applier Applier>
void evict(Executor& exec, Policy const& policies, SignalsOf const& signals_of, Applier const& how, layer_groups& all,
           group_states<Executor>& states, group_plans<Executor>& plans) {
  detail::sole_use const in_use("evict", exec);
  detail::check_made("evict", "states", all, policies, states);
  detail::check_made("evict", "plans", all, policies, plans);
  bool at_once = true;
  detail::for_each_policy(all, policies, [&](std::size_t g, auto const&) {
    lanes const batch = signals_of(static_cast<int>(g)).lanes;
    at_once = at_once && kvpolicy::segments(batch, plans[g].decides()) <= plans[g].segments();
  });
  if (at_once) {
    decide(exec, policies, all, signals_of, states, plans);
    return apply(exec, [&](int) { return how; }, plans, all, states);
  }
  detail::for_each_policy(all, policies, [&](std::size_t g, auto const& policy) {
    evict(exec, policy, signals_of(static_cast<int>(g)), how, all.groups[g].entries, states[g], plans[g]);
  });
}

}  // namespace KVPOLICY_NAMESPACE
