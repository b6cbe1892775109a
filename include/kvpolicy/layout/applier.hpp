// SPDX-License-Identifier: Apache-2.0
// The concept `applier`, and `apply`, which carries a decision out. Read this file first in this folder.
#pragma once

#include <concepts>
#include <kvpolicy/core/applier_columns.hpp>
#include <kvpolicy/core/contract/hook_checks.hpp>
#include <kvpolicy/layout/edit.hpp>
#include <kvpolicy/layout/effects.hpp>
#include <kvpolicy/ops/scratch.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {

template <class A>
concept says_its_name = requires {
  { A::name } -> std::convertible_to<char const*>;
};
template <class A>
concept says_its_effects = requires {
  { A::effects } -> std::convertible_to<applier_effects>;
};
template <class A>
concept says_what_it_takes =
    !hook::applier_takes_dropped::is_own_data<A> && requires { typename std::bool_constant<A::takes_dropped>; };

/// What is asked of an applier before anything is known of the executor.
template <class A>
using applier_hooks =
    hooks<A, required_hook<hook::applier_name, form_of_constant<hook::applier_name, A, says_its_name<A>>()>,
          required_hook<hook::applier_effects, form_of_constant<hook::applier_effects, A, says_its_effects<A>>()>,
          required_hook<hook::applier_refuse, form_of_function<hook::applier_refuse, A>()>,
          required_hook<hook::applier_edit, form_of_function<hook::applier_edit, A>()>, applier_columns_hook<A>,
          optional_hook<hook::applier_takes_dropped,
                        form_of_constant<hook::applier_takes_dropped, A, says_what_it_takes<A>>()>>;

/// The same once it is known.
template <class A, class Executor>
using applying_hooks =
    hooks<A,
          required_hook<hook::applier_refuse,
                        form_of_either(
                            form_of_call<hook::applier_refuse, A, anything, Executor&, keep_set const&, cache const&>(),
                            form_of_call<hook::applier_refuse, A, anything, Executor&, keep_set const&, cache const&,
                                         state<Executor> const&>())>,
          required_hook<hook::applier_edit, form_of_call<hook::applier_edit, A, anything, Executor&, keep_set const&,
                                                         cache const&, state<Executor>&, apply_stats*>()>>;

template <class Applier>
inline constexpr bool takes_dropped = [] {
  if constexpr (says_what_it_takes<Applier>) {
    return bool{Applier::takes_dropped};
  } else {
    return false;
  }
}();

/// Calls `refuse` of an applier.
template <executor Executor, class Applier>
void refuse_by(Executor& exec, Applier const& how, keep_set const& keep, cache const& in,
               [[maybe_unused]] state<Executor> const& state) {
  if constexpr (requires { how.refuse(exec, keep, in, state); }) {
    how.refuse(exec, keep, in, state);
  } else {
    how.refuse(exec, keep, in);
  }
}

/// True if the verb refuses a stale plan itself, before it writes.
template <class Verb>
inline constexpr bool verb_refuses_stale = requires { requires Verb::refuses_stale; };

/// True if an applier lists such a verb.
template <class... Verbs>
consteval bool refuses_stale(verbs<Verbs...>) {
  return (verb_refuses_stale<Verbs> || ...);
}

/// True if the verb raises the epochs of the keep set itself.
template <class Verb>
inline constexpr bool verb_raises_epochs = requires { requires Verb::raises_epochs; };
template <class... Verbs>
consteval bool raises_epochs(verbs<Verbs...>) {
  return (verb_raises_epochs<Verbs> || ...);
}

}  // namespace detail

/// An applier carries a keep set out in the engine's memory. It is a struct whose data members are the engine's tables
/// that it needs, and it has these members:
///
/// - `name`: the name by which error messages call it.
/// - `static constexpr applier_effects effects`: what it does to memory, so that an engine can refuse an applier that
///   it does not support.
/// - `void refuse(auto& exec, keep_set const& keep, cache const& in) const` throws if the keep set cannot be carried
///   out. It writes nothing. It may have one more parameter, `state const& state`.
/// - `void edit(auto& exec, keep_set const& keep, cache const& part, state& state, apply_stats* stats) const` carries
///   it out. `part` is the cache, restricted to the layers that were decided about. Rows, positions, counts and
///   recorded columns of an entry stay together.
///
/// Three members are optional:
///
/// - `using verbs = kvpolicy::verbs<...>` lists the verbs that it runs and that need scratch memory.
/// - `std::vector<column> columns(cache const& in) const`: columns of `column_extent::lane_entry` that it keeps for
///   itself. `make_state` adds them to the state if it is given the applier, and every applier moves them with the
///   entries.
/// - `static constexpr bool takes_dropped = true`: it also accepts plans that list the dropped entries (`lowest_one`).
///
/// `apply` works with every type of this form, including your own.
template <class A>
concept applier = std::copy_constructible<A> && detail::applier_hooks<A>::sound;

namespace detail {

/// Refuses what `apply` refuses, before anything is changed. Returns the keep set, with the epochs that tell whether it
/// is stale. On a device `edit` may be the one to compare them, which saves a launch (`defer_stale_check`).
template <executor Executor, applier Applier>
[[nodiscard]] keep_set checked_keep_set(Executor& exec, Applier const& how, plan<Executor> const& decided,
                                        cache const& in, state<Executor> const& state, bool defer_stale_check = false) {
  using backend = typename Executor::backend;
  check_decided(decided, in, state, takes_dropped<Applier>);
  keep_set keep = decided.keep();
  keep.epochs = state.epochs(keep.lanes.slots);
  bool const deferred = defer_stale_check && !reads_on_host<backend> && refuses_stale(verbs_of<Applier>());
  if (!deferred) ops::refuse_stale(exec, decided_part(in, keep).lanes, keep);
  exec.reserve(scratch_of_verbs<backend>(verbs_of<Applier>(), in));
  refuse_by(exec, how, keep, in, state);
  return keep;
}

}  // namespace detail

/// Carries out the decision that a plan holds: updates rows, lists, positions, counts and recorded columns so that each
/// lane holds the entries that are kept. (`drop_blocks` also leaves the entries that share a block with one.)
///
/// - in: `how` is an applier such as `compact{}`. `decided` is the plan that the latest `decide` filled. `in` is the
///   cache that it decided about.
/// - out: `stats`, unless it is null, points to memory of the executor and receives the numbers of entries kept, freed
///   and attended.
/// - cost: see the applier. It allocates only scratch, and only if `make_plan` was not given this applier.
/// - throws: `invalid_argument` if the plan holds no decision, if any call has changed the entries of its lanes since
///   (an earlier `apply` is one, `observe` is none), if it was decided about another cache or with another state, if
///   lanes that decide for themselves share a table that would be edited, if kernels cannot reach `stats`, or if the
///   applier refuses. Then nothing was changed.
template <executor Executor, applier Applier>
void apply(Executor& exec, Applier const& how, plan<Executor> const& decided, cache& in, state<Executor>& state,
           apply_stats* stats = nullptr) {
  if constexpr (detail::fits<detail::applying_hooks<Applier, Executor>>()) {
    detail::sole_use const in_use("apply", exec);
    detail::check_reach("apply", exec, "stats", stats);
    keep_set const keep = detail::checked_keep_set(exec, how, decided, in, state, true);
    cache const part = detail::decided_part(in, keep);
    how.edit(exec, keep, part, state, stats);
    if constexpr (!detail::raises_epochs(detail::verbs_of<Applier>())) detail::raise_epochs(exec, state, part.lanes);
  }
}
/// @cond
template <executor Executor, class Applier>
  requires(!applier<Applier>)
void apply(Executor&, Applier const&, plan<Executor> const&, cache&, state<Executor>&, apply_stats* = nullptr) {
  static_cast<void>(detail::applier_hooks<Applier>::check());  // the one error
}
/// @endcond

}  // namespace KVPOLICY_NAMESPACE
