// SPDX-License-Identifier: Apache-2.0
// One step of decoding under a cache policy: `step` runs its parts in the right order.
#pragma once

#include <kvpolicy/admission/dual.hpp>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/layout/append.hpp>
#include <kvpolicy/layout/compact.hpp>
#include <kvpolicy/selection/select.hpp>
#include <kvpolicy/step/cache_policy.hpp>
#include <kvpolicy/step/observe.hpp>
#include <kvpolicy/step/step_checks.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {

template <executor Executor, class Policy>
[[nodiscard]] step_plan<Executor> plans_of_pages(Executor& exec, Policy const& policy, cache const& pages) {
  step_plan<Executor> made{std::nullopt, make_plan(exec, evicting(policy), pages, compact{}), std::nullopt};
  if constexpr (is_there<decltype(policy.select)>) made.selection.emplace(make_plan(exec, selecting(policy), pages));
  return made;
}

}  // namespace detail

/// Makes the state of all parts together: of a dual cache if the policy has an admission, of a cache otherwise.
///
/// - throws: as `make_state` of each part, and if a recorder of the eviction keeps numbers of entries without saying
/// so.
template <executor Executor, class Admit, class Select, class Evict>
[[nodiscard]] dual_state<Executor> make_state(Executor& exec, cache_policy<Admit, Select, Evict> const& policy,
                                              dual_cache const& both) {
  detail::check_dual("make_state", both);
  detail::check_window("make_state", policy.admit, both);
  detail::check_recorders_of_entries("make_state", policy.evict, both.window.shape);
  exec.reserve(detail::scratch_to_promote<typename Executor::backend>(both));
  dual_state<Executor> made{make_state(exec, detail::admitting(policy), both.window, both.window.lanes.capacity),
                            make_state(exec, detail::evicting(policy), both.pages.entries)};
  lanes const& window = both.window.lanes;
  int const rows =
      std::max(window.capacity, both.pages.entries.lanes.capacity);  // a forward may be longer than the window
  auto const count = [&](int kind) { made.window.counted().add(exec, kind, window.sequences, rows); };
  std::apply([&](auto const&... each) { (detail::visit_kinds_of_rows_of(each, count), ...); },
             detail::recorders_of_window(policy));
  return made;
}
/// The same without an admission.
template <executor Executor, class Select, class Evict, class... Appliers>
[[nodiscard]] state<Executor> make_state(Executor& exec, cache_policy<omitted, Select, Evict> const& policy,
                                         cache const& in, Appliers const&... hows) {
  return make_state(exec, detail::evicting(policy), in, hows...);
}

/// Makes the plans of all parts. Nothing allocates after this while counts stay below the bounds.
///
/// - throws: as `make_plan` of each part.
template <executor Executor, class Admit, class Select, class Evict>
[[nodiscard]] step_plan<Executor> make_plan(Executor& exec, cache_policy<Admit, Select, Evict> const& policy,
                                            dual_cache const& both) {
  step_plan<Executor> made = detail::plans_of_pages(exec, policy, both.pages.entries);
  made.admission.emplace(make_plan(exec, detail::admitting(policy), both));
  return made;
}
/// The same without an admission.
template <executor Executor, class Select, class Evict>
[[nodiscard]] step_plan<Executor> make_plan(Executor& exec, cache_policy<omitted, Select, Evict> const& policy,
                                            cache const& in) {
  return detail::plans_of_pages(exec, policy, in);
}

/// Chooses the pages that a layer reads: see `select_pages` of a selection. `in` has the queries of this step, and
/// `in.lanes` are the lanes of the pages.
template <executor Executor, class... Parts, class... Given>
void select_pages(Executor& exec, cache_policy<Parts...> const& policy, signals<Given...> const& in,
                  state<Executor> const& pages, step_plan<Executor>& plans) {
  select_pages(exec, detail::selecting(policy), in, pages, *plans.selection);
}

namespace detail {

/// Decides the eviction and carries it out, after the caller has checked everything but the data in memory.
template <executor Executor, class Policy, class... Given>
void evict_checked(Executor& exec, Policy const& policy, signals<Given...> const& in, cache& pages,
                   state<Executor>& state, step_plan<Executor>& plans, apply_stats* stats) {
  if constexpr (is_there<decltype(policy.evict)>) {
    auto const evict = evicting(policy);
    auto const recorders = recorders_of(evict.score);
    auto const seen = in.with(pages.lanes, keys_of(pages), values_of(pages));
    using evict_type = std::remove_cvref_t<decltype(evict)>;
    using signal_set_type = signal_set_of<evict_type, std::remove_cvref_t<decltype(seen)>, Executor>;
    if constexpr (signals_complete<score_of<evict_type>, signal_set_type>(typename score_of<evict_type>::needs{})) {
      decide_checked(exec, resolve(evict), signal_set_type(seen, recorders, state), pages.shape, plans.eviction);
      compact{}.edit(exec, plans.eviction.keep(), pages, state, stats);
    }
  }
}

/// Updates the page bounds that the selection reads.
template <executor Executor, class Admit, class Select, class Evict>
void refresh_bounds(Executor& exec, cache_policy<Admit, Select, Evict> const& policy, cache const& pages,
                    state<Executor>& state) {
  constexpr std::size_t first = recorders_in<Evict>;
  record_some<first, first + recorders_in<Select>>(exec, recorders_of_pages(policy),
                                                   signals{pages.lanes, keys_of(pages)}, state);
}

template <executor Executor, class Policy, class... Given>
void maintain_checked(Executor& exec, Policy const& policy, signals<Given...> const& in, paged_lanes& pages,
                      state<Executor>& state, step_plan<Executor>& plans, apply_stats* stats) {
  evict_checked(exec, policy, in, pages.entries, state, plans, stats);
  ops::release_pages(exec, pages);
  refresh_bounds(exec, policy, pages.entries, state);
}
template <executor Executor, class Policy, class... Given>
void maintain_checked(Executor& exec, Policy const& policy, signals<Given...> const& in, cache& all,
                      state<Executor>& state, step_plan<Executor>& plans, apply_stats* stats) {
  evict_checked(exec, policy, in, all, state, plans, stats);
  refresh_bounds(exec, policy, all, state);
}

}  // namespace detail

/// Runs the work that follows a forward or an `ingest`: decides the eviction, carries it out by `compact`, frees the
/// pages that become empty, and updates the page bounds that the selection reads.
///
/// - in: `in` has the signals that the eviction needs besides keys and values, which are added here.
/// - throws: as `decide` and `apply`, before anything was changed but the plan. The same holds if a functor of the
///   eviction throws. Call `maintain` again to do the work of a `maintain` or a `step` that threw in this way.
template <executor Executor, class... Parts, class... Given>
void maintain(Executor& exec, cache_policy<Parts...> const& policy, signals<Given...> const& in, paged_lanes& pages,
              state<Executor>& state, step_plan<Executor>& plans, apply_stats* stats = nullptr) {
  detail::sole_use const in_use("maintain", exec);
  detail::check_paged_lanes("maintain", pages);
  detail::refuse_pages_alone("maintain", policy, pages.entries.lanes);
  detail::check_pages("maintain", exec, policy, in, pages.entries, state, plans);
  detail::maintain_checked(exec, policy, in, pages, state, plans, stats);
}
/// The same for the pages of a dual cache, told which window is before them: the query rows that an eviction has
/// recorded are newer than every entry of the pages.
template <executor Executor, class... Parts, class... Given>
void maintain(Executor& exec, cache_policy<Parts...> const& policy, signals<Given...> const& in, dual_cache& both,
              dual_state<Executor>& state, step_plan<Executor>& plans, apply_stats* stats = nullptr) {
  detail::check_dual("maintain", both);
  paged_lanes pages = both.pages;
  pages.entries.lanes = lanes_of_pages(both);
  maintain(exec, policy, in, pages, state.pages, plans, stats);
}
/// The same for a cache without a free list of pages. The engine frees the places after each lane's last entry itself.
template <executor Executor, class... Parts, class... Given>
void maintain(Executor& exec, cache_policy<Parts...> const& policy, signals<Given...> const& in, cache& all,
              state<Executor>& state, step_plan<Executor>& plans, apply_stats* stats = nullptr) {
  detail::sole_use const in_use("maintain", exec);
  detail::check_cache("maintain", all);
  detail::refuse_pages_alone("maintain", policy, all.lanes);
  detail::check_pages("maintain", exec, policy, in, all, state, plans);
  detail::maintain_checked(exec, policy, in, all, state, plans, stats);
}

/// One step of decoding with an admission, for the new tokens of some sequences of a batch:
///
/// 1. `promote`, for all layers: entries that the new tokens would overwrite are copied into pages if the policy admits
///    them. Drafts overwrite nothing, because the ring has rows for them.
/// 2. `append`: the window gets entries for the new tokens, at places that `forward` writes.
/// 3. `forward()`, which the engine defines. For each layer it writes rows, calls `observe` with their gates and
///    `select_pages`, and attends to the window and to those pages.
/// 4. The eviction drops entries from the pages, and pages that become empty are freed.
/// 5. The page bounds are updated.
///
/// - in: `in` has the signals that the admission and the eviction read besides keys and values, which are added. Its
///   lanes are replaced.
/// - throws: `invalid_argument` if the policy, the plans, the cache or the new tokens are wrong, before anything was
///   changed but the plan. The same holds if a functor of the admission throws. An exception of `forward` or of a
///   functor of the eviction comes after 2: promoted entries are in their pages, the new tokens are in the window,
///   nothing is evicted, and the bounds do not cover the newest entries, so that `select_pages` reads their pages. If
///   `forward` is complete, `maintain` does 4 and 5.
template <executor Executor, class... Parts, class... Given, class Forward>
void step(Executor& exec, cache_policy<Parts...> const& policy, signals<Given...> const& in, dual_cache& both,
          dual_state<Executor>& state, step_plan<Executor>& plans, std::span<append_request const> new_tokens,
          Forward const& forward, step_stats* stats = nullptr) {
  detail::sole_use in_use("step", exec);
  expects(plans.admission.has_value(), "step", "plan", "of a policy that admits nothing", "make_plan makes it");
  exit_plan<Executor>& exits = *plans.admission;
  auto const admit = window_part(policy);
  auto const seen = in.with(both.window.lanes, keys_of(both.window), values_of(both.window));
  detail::check_exits("step", exec, admit, seen, both, state, exits);
  paged_lanes pages = both.pages;
  pages.entries.lanes = lanes_of_pages(both);
  detail::check_pages("step", exec, policy, in, pages.entries, state.pages, plans);
  for (append_request const& each : new_tokens) detail::check_append("step", both.window, state.window, each);
  ops::refuse_new_tokens(exec, "step", both.window.lanes, both.pages.entries.lanes, new_tokens);
  auto const tokens = exits.tokens().first(static_cast<std::size_t>(both.window.lanes.sequences));
  int const first = both.window.lanes.sequence_begin;
  std::fill(tokens.begin(), tokens.end(), 0);
  for (append_request const& each : new_tokens) {
    if (!each.in_flight) tokens[static_cast<std::size_t>(each.sequence - first)] += each.tokens;
  }
  if constexpr (detail::is_there<decltype(policy.evict)>) plans.eviction.withdraw();
  detail::retire_checked("step", exec, admit, seen, both, state, exits, tokens, promoted{},
                         stats != nullptr ? &stats->promoted : nullptr);
  for (append_request const& each : new_tokens) detail::append_checked(exec, both.window, state.window, each);
  in_use.end();
  forward();
  detail::sole_use const again("step", exec);
  detail::maintain_checked(exec, policy, in, pages, state.pages, plans, stats != nullptr ? &stats->evicted : nullptr);
}

/// The same for one sequence.
template <executor Executor, class... Parts, class... Given, class Forward>
void step(Executor& exec, cache_policy<Parts...> const& policy, signals<Given...> const& in, dual_cache& both,
          dual_state<Executor>& state, step_plan<Executor>& plans, append_request const& new_tokens,
          Forward const& forward, step_stats* stats = nullptr) {
  step(exec, policy, in, both, state, plans, std::span<append_request const>(&new_tokens, 1), forward, stats);
}

/// One step without an admission: `append`, `forward()`, eviction, and update of the page bounds. The engine allocates
/// places for the new tokens before, and frees the places after each lane's last entry afterwards.
///
/// - throws: `invalid_argument` if the policy, the plans, the cache or the new tokens are wrong, before anything was
///   changed. An exception of `forward` or of a functor of the eviction passes through: the new tokens stay, nothing is
///   evicted, and the plan holds no decision of the eviction. If `forward` is complete, `maintain` does the rest.
template <executor Executor, class Select, class Evict, class... Given, class Forward>
void step(Executor& exec, cache_policy<omitted, Select, Evict> const& policy, signals<Given...> const& in, cache& all,
          state<Executor>& state, step_plan<Executor>& plans, append_request const& new_tokens, Forward const& forward,
          step_stats* stats = nullptr) {
  detail::sole_use in_use("step", exec);
  detail::check_cache("step", all);
  detail::check_pages("step", exec, policy, in, all, state, plans);
  detail::check_append("step", all, state, new_tokens);
  detail::append_checked(exec, all, state, new_tokens);
  if constexpr (detail::is_there<Evict>) plans.eviction.withdraw();
  in_use.end();
  forward();
  detail::sole_use const again("step", exec);
  detail::maintain_checked(exec, policy, in, all, state, plans, stats != nullptr ? &stats->evicted : nullptr);
}

}  // namespace KVPOLICY_NAMESPACE
