// The plans of a step, and the checks that are made before a step changes anything.
#pragma once

#include <algorithm>
#include <kvpolicy/admission/dual.hpp>
#include <kvpolicy/core/check_counts.hpp>
#include <kvpolicy/layout/compact.hpp>
#include <kvpolicy/selection/select.hpp>
#include <kvpolicy/step/cache_policy.hpp>
#include <optional>

namespace KVPOLICY_NAMESPACE {

/// The plans of a cache policy's parts. Each plan holds a decision or none, independently of the others.
template <class Executor>
struct step_plan {
  std::optional<exit_plan<Executor>> exits;           ///< of the admission
  plan<Executor> evicting;                            ///< of the eviction; without one it keeps all entries
  std::optional<selection_plan<Executor>> selecting;  ///< of the selection
};

/// The effects of a step on memory.
struct step_stats {
  promotion_stats promoted{};
  apply_stats evicted{};
};

namespace detail {

template <class Part>
inline constexpr std::size_t recorders_in = std::tuple_size_v<decltype(recorders_of_part(std::declval<Part const&>()))>;

template <class... Recorders>
consteval bool all_record_at_append(std::tuple<Recorders...> const*) {
  return (from_birth<Recorders> && ...);
}

/// Beside an admission an eviction may only record values that are known when a token is appended, because its entries
/// come from the window.
template <class Evict>
struct eviction_of_pages {
  using recorders = decltype(recorders_of_part(std::declval<Evict const&>()));
  static constexpr bool records_at_append_only = all_record_at_append(static_cast<recorders const*>(nullptr));
};
/// A cache policy carries its eviction out by `compact`, which needs a keep set that lists the kept entries.
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

/// Checks the parts that act on pages, before a step changes anything. The caller has checked the cache itself.
template <executor Executor, class Admit, class Select, class Evict, class... Given>
void check_pages(char const* call, Executor const& exec, cache_policy<Admit, Select, Evict> const& policy,
                 signals<Given...> const& in, cache const& pages, state<Executor> const& state,
                 step_plan<Executor> const& plans) {
  using backend = typename Executor::backend;
  static_assert(eviction_by_moving<Evict>::lists_what_is_kept,
                "kvpolicy: a cache policy carries its eviction out by compact, which takes what is kept: "
                "lowest_one goes with overwrite");
  check_same_lanes(call, "pages.lanes", pages.lanes, state.lanes());
  check_same_lanes(call, "plan.lanes", pages.lanes, plans.evicting.lanes());
  check_state(call, state, recorders_of_pages(policy));
  refuse_counts<backend>(call, pages.lanes);
  if constexpr (is_there<Evict>) {
    using evicting_type = decltype(evicting(policy));
    check_policy(call, policy.evict, pages.shape);
    expects(policy.evict.score.decides == granularity::lane, call, "evict.score.decides",
            to_string(granularity{policy.evict.score.decides}), "pages are ragged: every lane decides for itself");
    check_plan(call, exec, policy.evict, pages.lanes, pages.shape, plans.evicting);
    check_reserved(call, exec,
                   std::max(scratch_to_decide<backend, evicting_type>(pages.shape, pages.lanes),
                            scratch_to_apply<backend, compact>(pages)));
    check_apart(call, "lanes.count", pages.lanes.count, pages.lanes, granularity::lane, pages.shape);
    check_apart(call, "lanes.position", pages.lanes.position, pages.lanes, granularity::lane, pages.shape);
    in.check(call, pages.shape);
  }
  if constexpr (is_there<Select>) {
    check_policy(call, policy.select, pages.shape);
    expects(plans.selecting.has_value(), call, "plan", "of a policy that selects nothing", "make_plan makes it");
    check_reserved(call, exec, scratch_to_observe<backend>(recorders_of_pages(policy), pages.shape, pages.lanes));
    using bounding = implementation<ops::extend_bounds_t, backend>;
    if constexpr (requires { bounding::refuse(keys_of(pages)); }) bounding::refuse(keys_of(pages));
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
