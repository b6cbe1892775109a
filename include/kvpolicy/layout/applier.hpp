// What an applier is, and how a decision is carried out: `apply`. The first file to read in this room.
#pragma once

#include <concepts>
#include <kvpolicy/layout/edit.hpp>
#include <kvpolicy/layout/effects.hpp>
#include <kvpolicy/ops/scratch.hpp>

namespace KVPOLICY_NAMESPACE {

/// An applier carries a keep set out in the engine's memory. A struct of what it needs to know, with
///
/// - `name`: how errors call it;
/// - `static constexpr applier_effects effects`: what it does, for engines that cannot bear everything;
/// - `void refuse(auto& exec, keep_set const& keep, cache const& in) const`: throws if it cannot be done. Writes
/// nothing;
/// - `void edit(auto& exec, keep_set const& keep, cache const& part, state& state, apply_stats* stats) const`: does it.
/// `part`
///   is the cache with the layers that were decided about; rows, positions, counts and recorded columns move together.
///
/// Optional:
///
/// - `using verbs = kvpolicy::verbs<...>`: the verbs that it runs and that need scratch memory;
/// - `static constexpr bool takes_dropped = true`: it also takes plans that list what is dropped (`lowest_one`).
///
/// `apply` serves every applier, also one of yours.
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

/// Carries out what a plan holds: rows, lists, positions, counts and recorded columns follow the keep sets.
///
/// - in: `how`, an applier such as `compact{}`; `decided`, the plan of the latest `decide`; `in`, the cache that it
///   decided about. Decides nothing.
/// - out: `stats`, where it is not null, in the executor's memory: entries kept, freed and attended.
/// - cost: see the applier. Allocates only scratch, and only if `make_plan` was not told of this applier.
/// - throws: `invalid_argument` if the plan holds no decision, was made for other counts or another cache, if lanes
/// that
///   decide apart share a table that would be edited, or if the applier refuses. Then nothing was changed.
template <executor Executor, applier Applier>
void apply(Executor& exec, Applier const& how, plan<Executor> const& decided, cache& in, state<Executor>& state,
           apply_stats* stats = nullptr) {
  detail::check_decided(exec, decided, in, state, detail::takes_dropped<Applier>);
  exec.reserve(detail::scratch_of_verbs<typename Executor::backend>(detail::verbs_of<Applier>(), in));
  how.refuse(exec, decided.keep(), in);
  how.edit(exec, decided.keep(), detail::decided_part(in, decided.keep()), state, stats);
}

}  // namespace KVPOLICY_NAMESPACE
