// SPDX-License-Identifier: Apache-2.0
// The plans of a step, and the checks that are made before a step changes anything.
#pragma once

#include <algorithm>
#include <kvpolicy/admission/dual.hpp>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/layout/compact.hpp>
#include <kvpolicy/selection/select.hpp>
#include <kvpolicy/step/cache_policy.hpp>
#include <optional>

namespace KVPOLICY_NAMESPACE {

/// The plans of a cache policy's parts. Each plan holds a decision or none, independently of the others.
template <class Executor>
struct step_plan {
  std::optional<exit_plan<Executor>> admission;       ///< of the admission
  plan<Executor> eviction;                            ///< of the eviction; without one it keeps all entries
  std::optional<selection_plan<Executor>> selection;  ///< of the selection
};

/// The effects of a step on memory.
struct step_stats {
  promotion_stats promoted{};
  apply_stats evicted{};
};

namespace detail {

template <class Part>
inline constexpr std::size_t recorders_in = std::tuple_size_v<decltype(recorders_of_part(std::declval<Part const&>()))>;

/// A cache policy carries its eviction out by `compact`, which needs a keep set that lists the kept entries.
template <class Evict>
struct eviction_by_moving {
  static constexpr bool lists_what_is_kept = [] {
    if constexpr (is_there<Evict>) {
      return !std::same_as<std::remove_cvref_t<decltype(pick_of(std::declval<Evict const&>()))>, lowest_one>;
    } else {
      return true;
    }
  }();
};

/// The recorders of pages that observe forwards, in the window and in the pages: those of the eviction.
template <class Evict>
inline constexpr bool observes_by_type = [] {
  constexpr auto one = []<class... Recorders>(std::tuple<Recorders...> const*) {
    return ((!known_at_append<Recorders> && !erased_recorder<Recorders>) || ...);
  };
  return one(static_cast<decltype(recorders_of_part(std::declval<Evict const&>())) const*>(nullptr));
}();

/// Refuses a recorder of the eviction that keeps numbers of entries and does not say so: the window would not record
/// them, and an admitted entry would come without.
template <class Evict>
void check_recorders_of_entries(char const* call, Evict const& policy, shape const& model) {
  auto const one = [&](auto const& keeps) {
    std::string const column = undeclared_column_of(keeps, model);
    expects(
        column.empty(), call, "evict", [&] { return to_string(policy); },
        [&] {
          return "its column " + column +
                 " has a number of each entry, and its recorder does not say so (of_entries): " +
                 "beside an admission the window records them, too";
        });
  };
  std::apply([&](auto const&... each) { (one(each), ...); }, recorders_of_part(policy));
}

/// Refuses the signals of the window alone, if recorders of the eviction observe forwards.
template <class Evict>
void refuse_window_alone(char const* call, [[maybe_unused]] Evict const& policy) {
  auto const one = [&](auto const& keeps) {
    expects(
        !observes_forwards(keeps), call, "evict", [&] { return to_string(policy); },
        "it records what forwards show: give the signals of the pages, too");
  };
  std::apply([&](auto const&... each) { (one(each), ...); }, recorders_of_part(policy));
}

/// Refuses pages without the window before them, if a recorder of the eviction keeps query rows, which are newer than
/// every entry of the pages.
template <class Policy>
void refuse_pages_alone(char const* call, [[maybe_unused]] Policy const& policy, lanes const& pages) {
  auto const one = [&](auto const& keeps) {
    expects(!keeps_rows(keeps) || pages.newer.count != nullptr, call, "pages", "without their window",
            "the eviction keeps query rows, which are newer than every entry of the pages: give the dual cache");
  };
  if constexpr (is_there<decltype(policy.admit)>) {
    std::apply([&](auto const&... each) { (one(each), ...); }, recorders_of_part(policy.evict));
  }
}

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
  check_same_lanes(call, "plan.lanes", pages.lanes, plans.eviction.lanes());
  check_state(call, state, recorders_of_pages(policy));
  refuse_counts<backend>(call, pages.lanes);
  if constexpr (is_there<Evict>) {
    granularity const decides = policy.evict.score.decides;
    expects(decides == granularity::lane, call, "evict.score.decides", to_string(decides),
            "pages are ragged: every lane decides for itself");
    check_policy(call, policy.evict, pages.shape);
    check_plan(call, exec, resolve(policy.evict), pages.lanes, pages.shape, plans.eviction);
    check_reserved(call, exec, scratch_to_decide<backend>(evicting(policy), pages.shape, pages.lanes));
    expects(!resolve(policy.evict).drops_one, call, "evict.pick", "lowest_one",
            "a cache policy carries its eviction out by compact, which takes what is kept");
    if constexpr (erased<score_of<Evict>>) {
      refuse_given<backend>(call, policy.evict.score, in.with(pages.lanes, keys_of(pages), values_of(pages)));
    }
    check_reserved(call, exec, scratch_to_apply<backend, compact>(pages));
    check_apart(call, "lanes.count", pages.lanes.count, pages.lanes, granularity::lane, pages.shape);
    check_apart(call, "lanes.position", pages.lanes.position, pages.lanes, granularity::lane, pages.shape);
    in.check(call, pages.shape);
  }
  if constexpr (is_there<Select>) {
    check_policy(call, policy.select, pages.shape);
    expects(plans.selection.has_value(), call, "plan", "of a policy that selects nothing", "make_plan makes it");
    check_reserved(call, exec, scratch_to_observe<backend>(recorders_of_pages(policy), pages.shape, pages.lanes));
    using bounding = implementation<ops::extend_bounds_t, backend>;
    if constexpr (requires { bounding::refuse(keys_of(pages)); }) bounding::refuse(keys_of(pages));
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
