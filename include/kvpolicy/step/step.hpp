// One step of decoding under a cache policy: in which order its parts act.
#pragma once

#include <kvpolicy/admission/dual.hpp>
#include <kvpolicy/core/check_counts.hpp>
#include <kvpolicy/eviction/decide.hpp>
#include <kvpolicy/layout/append.hpp>
#include <kvpolicy/layout/compact.hpp>
#include <kvpolicy/selection/select.hpp>
#include <kvpolicy/step/cache_policy.hpp>
#include <optional>

namespace KVPOLICY_NAMESPACE {

/// The plans of a cache policy's parts.
template <class Executor>
struct step_plan {
  std::optional<exit_plan<Executor>> exits;           ///< of the admission
  plan<Executor> evicting;                            ///< of the eviction, or of the full cache
  std::optional<selection_plan<Executor>> selecting;  ///< of the selection
};

/// What a step came to.
struct step_tally {
  promotion_tally promoted{};
  tally evicted{};
};

namespace detail {

/// Shows signals to the recorders [At, End) of a tuple, whose columns are in `held` in the tuple's order.
template <std::size_t At, std::size_t End, executor Executor, class... Recorders, class Given>
void record_some(Executor& exec, std::tuple<Recorders...> const& all, Given const& in, state<Executor> const& held) {
  if constexpr (At < End) {
    using type = std::tuple_element_t<At, std::tuple<Recorders...>>;
    if constexpr (signals_complete<type, Given>(typename type::needs{})) {
      std::size_t const first = first_column<At>(all, held.model(), held.who().bound);
      std::get<At>(all).observe(exec, in, held.columns_from(first));
      record_some<At + 1, End>(exec, all, in, held);
    }
  }
}

template <class Part>
inline constexpr std::size_t recorders_in = std::tuple_size_v<decltype(recorders_of_part(std::declval<Part const&>()))>;

template <class... Recorders>
consteval bool all_born(std::tuple<Recorders...> const*) {
  return (from_birth<Recorders> && ...);
}

/// What the eviction of a cache policy may be. In pages, what it records was known when its entries were written.
template <class Evict>
struct eviction_of_pages {
  using recorders = decltype(recorders_of_part(std::declval<Evict const&>()));
  static constexpr bool records_from_birth_only = all_born(static_cast<recorders const*>(nullptr));
};
template <class Evict>
struct eviction_by_moving {
  static constexpr bool lists_what_is_kept = [] {
    if constexpr (is_there<Evict>) {
      return !std::same_as<decltype(pick_of(std::declval<Evict const&>())), lowest_one>;
    } else {
      return true;
    }
  }();
};

/// Everything about the parts that act on pages, asked before a step changes anything.
template <executor Executor, class Admit, class Select, class Evict>
void check_pages(char const* call, Executor const& exec, cache_policy<Admit, Select, Evict> const& policy,
                 cache const& pages, state<Executor> const& held, step_plan<Executor> const& plans) {
  static_assert(eviction_by_moving<Evict>::lists_what_is_kept,
                "kvpolicy: a cache policy carries its eviction out by compact, which takes what is kept: "
                "lowest_one goes with overwrite");
  check_cache(call, pages);
  check_same_lanes(call, "pages.who", pages.who, held.who());
  check_same_lanes(call, "plan.who", pages.who, plans.evicting.who());
  check_state(call, held, recorders_of_pages(policy));
  check_scratch(call, exec, held);
  refuse_counts<typename Executor::backend>(call, pages.who);
  if constexpr (is_there<Evict>) {
    check_policy(call, policy.evict, pages.shape);
    expects(policy.evict.score.decides == granularity::lane, call, "evict.score.decides",
            to_string(granularity{policy.evict.score.decides}), "pages are ragged: every lane decides for itself");
  }
  if constexpr (is_there<Select>) {
    check_selection(call, policy.select, pages.shape);
    expects(plans.selecting.has_value(), call, "plan", "of a policy that selects nothing", "make_plan makes it");
    using bounding = implementation<ops::extend_bounds_t, typename Executor::backend>;
    if constexpr (requires { bounding::refuse(keys_of(pages)); }) bounding::refuse(keys_of(pages));
  }
}

template <executor Executor, class Policy>
[[nodiscard]] step_plan<Executor> plans_of_pages(Executor& exec, Policy const& policy, cache const& pages) {
  step_plan<Executor> made{std::nullopt, make_plan(exec, evicting(policy), pages), std::nullopt};
  if constexpr (is_there<decltype(policy.select)>) made.selecting.emplace(make_plan(exec, selecting(policy), pages));
  return made;
}

}  // namespace detail

/// The state of all parts together: of a dual cache where the policy admits, else of a cache.
///
/// - throws: as make_state of each part.
template <executor Executor, class Admit, class Select, class Evict>
[[nodiscard]] dual_state<Executor> make_state(Executor& exec, cache_policy<Admit, Select, Evict> const& policy,
                                              dual_cache const& both) {
  static_assert(detail::eviction_of_pages<Evict>::records_from_birth_only,
                "kvpolicy: beside an admission an eviction records only what entries are born with; "
                "give its other signals when it decides");
  detail::check_dual("make_state", both);
  detail::check_window("make_state", policy.admit, both);
  exec.reserve(detail::dual_scratch<typename Executor::backend>(both));
  return {make_state(exec, detail::admitting(policy), both.window, both.window.who.bound),
          make_state(exec, detail::evicting(policy), both.global.entries)};
}
/// The same without an admission.
template <executor Executor, class Select, class Evict>
[[nodiscard]] state<Executor> make_state(Executor& exec, cache_policy<omitted, Select, Evict> const& policy,
                                         cache const& in) {
  return make_state(exec, detail::evicting(policy), in);
}

/// The plans of all parts. Nothing allocates after this while counts stay below the bounds.
///
/// - throws: as make_plan of each part.
template <executor Executor, class Admit, class Select, class Evict>
[[nodiscard]] step_plan<Executor> make_plan(Executor& exec, cache_policy<Admit, Select, Evict> const& policy,
                                            dual_cache const& both) {
  step_plan<Executor> made = detail::plans_of_pages(exec, policy, both.global.entries);
  made.exits.emplace(make_plan(exec, detail::admitting(policy), both));
  return made;
}
/// The same without an admission.
template <executor Executor, class Select, class Evict>
[[nodiscard]] step_plan<Executor> make_plan(Executor& exec, cache_policy<omitted, Select, Evict> const& policy,
                                            cache const& in) {
  return detail::plans_of_pages(exec, policy, in);
}

/// Shows a forward's signals to what records entries when they are written: gates, log beta. In: `in.who`, the
/// window's lanes, or those of the cache.
template <executor Executor, class... Parts, class... Given>
void observe(Executor& exec, cache_policy<Parts...> const& policy, signals<Given...> const& in,
             dual_state<Executor>& held) {
  observe(exec, detail::admitting(policy), in, held.window);
}
/// The same without an admission.
template <executor Executor, class Select, class Evict, class... Given>
void observe(Executor& exec, cache_policy<omitted, Select, Evict> const& policy, signals<Given...> const& in,
             state<Executor>& held) {
  detail::check_same_lanes("observe", "signals.who", in.who, held.who());
  in.check("observe", held.model());
  detail::check_state("observe", held, detail::recorders_of_pages(policy));
  detail::check_scratch("observe", exec, held);
  detail::refuse_counts<typename Executor::backend>("observe", in.who);
  detail::record_some<0, detail::recorders_in<Evict>>(exec, detail::recorders_of_pages(policy), in, held);
}

/// Which pages a layer reads: see `select` of a selection. In: queries of this step, `in.who` the pages' lanes.
template <executor Executor, class... Parts, class... Given>
void select(Executor& exec, cache_policy<Parts...> const& policy, signals<Given...> const& in,
            state<Executor> const& pages, step_plan<Executor>& plans) {
  select(exec, detail::selecting(policy), in, pages, *plans.selecting);
}

namespace detail {

template <executor Executor, class Policy, class... Given>
void evict_from(Executor& exec, Policy const& policy, signals<Given...> const& in, cache& pages, state<Executor>& held,
                step_plan<Executor>& plans, tally* told) {
  if constexpr (is_there<decltype(policy.evict)>) {
    decide(exec, evicting(policy), in.with(pages.who, keys_of(pages), values_of(pages)), held, plans.evicting);
    apply(exec, compact{}, plans.evicting, pages, held, told);
  }
}

template <executor Executor, class Admit, class Select, class Evict>
void refresh_bounds(Executor& exec, cache_policy<Admit, Select, Evict> const& policy, cache const& pages,
                    state<Executor>& held) {
  constexpr std::size_t first = recorders_in<Evict>;
  record_some<first, first + recorders_in<Select>>(exec, recorders_of_pages(policy), signals{pages.who, keys_of(pages)},
                                                   held);
}

}  // namespace detail

/// What follows a forward, or a chunk that was taken in: the eviction decides about the entries and is carried out by
/// moving rows together, pages that it emptied go back to the supply, then the bounds that the selection asks are true
/// again. In: signals that the eviction needs beside keys and values, which are added. Without a supply the engine
/// gives back what lies behind each lane's end.
///
/// - throws: `invalid_argument` as decide and apply, before anything was changed.
template <executor Executor, class... Parts, class... Given>
void maintain(Executor& exec, cache_policy<Parts...> const& policy, signals<Given...> const& in, paged_lanes& pages,
              state<Executor>& held, step_plan<Executor>& plans, tally* told = nullptr) {
  detail::check_pages("maintain", exec, policy, pages.entries, held, plans);
  detail::evict_from(exec, policy, in, pages.entries, held, plans, told);
  ops::release_pages(exec, pages);
  detail::refresh_bounds(exec, policy, pages.entries, held);
}
/// The same of a cache whose engine gives pages back.
template <executor Executor, class... Parts, class... Given>
void maintain(Executor& exec, cache_policy<Parts...> const& policy, signals<Given...> const& in, cache& all,
              state<Executor>& held, step_plan<Executor>& plans, tally* told = nullptr) {
  detail::check_pages("maintain", exec, policy, all, held, plans);
  detail::evict_from(exec, policy, in, all, held, plans, told);
  detail::refresh_bounds(exec, policy, all, held);
}

/// One step of decoding with an admission: new tokens of some sequences of a batch.
///
/// 1. promote: what the new tokens would overwrite goes on in pages if it is admitted, once for all layers. Drafts
///    overwrite nothing: the ring has rows for them;
/// 2. append: the window takes the new tokens in, at places that `forward` writes;
/// 3. `forward()`: the engine's own. For each layer: write rows, `observe` their gates, `select` pages, attend to the
///    window and those pages;
/// 4. evict from the pages, and give back those that are empty; 5. refresh bounds.
///
/// - throws: `invalid_argument` for whatever is wrong with policy, plans, cache or new tokens, before anything was
///   changed but the plan. What `forward` throws passes, and the new tokens stay.
template <executor Executor, class... Parts, class... Given, class Forward>
void step(Executor& exec, cache_policy<Parts...> const& policy, signals<Given...> const& in, dual_cache& both,
          dual_state<Executor>& held, step_plan<Executor>& plans, std::span<appended const> fresh,
          Forward const& forward, step_tally* told = nullptr) {
  detail::check_pages("step", exec, policy, both.global.entries, held.global, plans);
  expects(plans.exits.has_value(), "step", "plan", "of a policy that admits nothing", "make_plan makes it");
  exit_plan<Executor>& exits = *plans.exits;
  detail::check_same_lanes("step", "plan.who", both.window.who, exits.decided.who());
  detail::refuse_counts<typename Executor::backend>("step", both.window.who);
  ops::refuse_fresh(exec, "step", both.window.who, both.global.entries.who, fresh);
  std::fill(exits.tokens().begin(), exits.tokens().end(), 0);
  for (appended const& each : fresh) {
    if (!each.in_flight) exits.tokens()[static_cast<std::size_t>(each.sequence)] += each.tokens;
  }
  make_room(exec, window_part(policy), in.with(both.window.who, keys_of(both.window), values_of(both.window)), both,
            held, exits, exits.tokens(), told != nullptr ? &told->promoted : nullptr);
  for (appended const& each : fresh) append(exec, both.window, held.window, each);
  forward();
  maintain(exec, policy, in, both.global, held.global, plans, told != nullptr ? &told->evicted : nullptr);
}

/// The same for one sequence.
template <executor Executor, class... Parts, class... Given, class Forward>
void step(Executor& exec, cache_policy<Parts...> const& policy, signals<Given...> const& in, dual_cache& both,
          dual_state<Executor>& held, step_plan<Executor>& plans, appended const& fresh, Forward const& forward,
          step_tally* told = nullptr) {
  step(exec, policy, in, both, held, plans, std::span<appended const>(&fresh, 1), forward, told);
}

/// One step without an admission: append, `forward()`, evict, refresh bounds. The engine made room before, and gives
/// back what lies behind each lane's end afterwards.
template <executor Executor, class Select, class Evict, class... Given, class Forward>
void step(Executor& exec, cache_policy<omitted, Select, Evict> const& policy, signals<Given...> const& in, cache& all,
          state<Executor>& held, step_plan<Executor>& plans, appended const& fresh, Forward const& forward,
          step_tally* told = nullptr) {
  detail::check_pages("step", exec, policy, all, held, plans);
  append(exec, all, held, fresh);
  forward();
  maintain(exec, policy, in, all, held, plans, told != nullptr ? &told->evicted : nullptr);
}

}  // namespace KVPOLICY_NAMESPACE
