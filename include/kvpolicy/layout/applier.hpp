// The concept `applier`, and `apply`, which carries a decision out. Read this file first in this folder.
#pragma once

#include <concepts>
#include <kvpolicy/layout/edit.hpp>
#include <kvpolicy/layout/effects.hpp>
#include <kvpolicy/ops/scratch.hpp>

namespace KVPOLICY_NAMESPACE {

/// An applier carries a keep set out in the engine's memory. It is a struct whose data members are the engine's tables
/// that it needs, and it has these members:
///
/// - `name`: the name by which error messages call it.
/// - `static constexpr applier_effects effects`: what it does to memory, so that an engine can refuse an applier that
///   it does not support.
/// - `void refuse(auto& exec, keep_set const& keep, cache const& in) const` throws if the keep set cannot be carried
///   out. It writes nothing.
/// - `void edit(auto& exec, keep_set const& keep, cache const& part, state& state, apply_stats* stats) const` carries
///   it out. `part` is the cache, restricted to the layers that were decided about. Rows, positions, counts and
///   recorded columns of an entry stay together.
///
/// Two members are optional:
///
/// - `using verbs = kvpolicy::verbs<...>` lists the verbs that it runs and that need scratch memory.
/// - `static constexpr bool takes_dropped = true`: it also accepts plans that list the dropped entries (`lowest_one`).
///
/// `apply` works with every type of this form, including your own.
template <class A>
concept applier = std::copy_constructible<A> && requires {
  { A::name } -> std::convertible_to<char const*>;
  { A::effects } -> std::convertible_to<applier_effects>;
};

namespace detail {

template <class Applier>
inline constexpr bool takes_dropped = [] {
  if constexpr (requires { Applier::takes_dropped; }) {
    return Applier::takes_dropped;
  } else {
    return false;
  }
}();

}  // namespace detail

/// Carries out the decision that a plan holds: updates rows, lists, positions, counts and recorded columns so that each
/// lane holds exactly the entries that are kept.
///
/// - in: `how` is an applier such as `compact{}`. `decided` is the plan that the latest `decide` filled. `in` is the
///   cache that it decided about.
/// - out: `stats`, unless it is null, points to memory of the executor and receives the numbers of entries kept, freed
///   and attended.
/// - cost: see the applier. It allocates only scratch, and only if `make_plan` was not given this applier.
/// - throws: `invalid_argument` if the plan holds no decision, if the counts have changed since, if it was decided
///   about another cache, if lanes that decide for themselves share a table that would be edited, or if the applier
///   refuses. Then nothing was changed.
template <executor Executor, applier Applier>
void apply(Executor& exec, Applier const& how, plan<Executor> const& decided, cache& in, state<Executor>& state,
           apply_stats* stats = nullptr) {
  detail::check_decided(exec, decided, in, state, detail::takes_dropped<Applier>);
  exec.reserve(detail::scratch_of_verbs<typename Executor::backend>(detail::verbs_of<Applier>(), in));
  how.refuse(exec, decided.keep(), in);
  how.edit(exec, decided.keep(), detail::decided_part(in, decided.keep()), state, stats);
}

}  // namespace KVPOLICY_NAMESPACE
