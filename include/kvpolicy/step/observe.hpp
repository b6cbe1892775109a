// SPDX-License-Identifier: Apache-2.0
// `observe` of a cache policy: passes the signals of a forward to the recorders of its parts.
#pragma once

#include <kvpolicy/core/dual_cache.hpp>
#include <kvpolicy/decision/observe.hpp>
#include <kvpolicy/step/cache_policy.hpp>
#include <kvpolicy/step/in_window.hpp>
#include <kvpolicy/step/step_checks.hpp>

namespace KVPOLICY_NAMESPACE {

/// True if the eviction of a cache policy with an admission records what forwards show, so that `observe` takes the
/// signals of the window and of the pages.
template <class... Parts>
[[nodiscard]] bool observes_pages(cache_policy<Parts...> const& policy) {
  return std::apply([](auto const&... each) { return (detail::observes_forwards(each) || ...); },
                    detail::recorders_of_part(policy.evict));
}

/// Passes the signals of a forward (gates, log beta) to the recorders of values that are known when a token is
/// appended. `in.lanes` are the lanes of the window.
///
/// - throws: as `observe` of the admission, and if the eviction records what forwards show, such as attention: it
///   observes the pages, too.
template <executor Executor, class... Parts, class... Given>
void observe(Executor& exec, cache_policy<Parts...> const& policy, signals<Given...> const& in,
             dual_state<Executor>& state) {
  detail::sole_use const in_use("observe", exec);
  static_assert(!detail::observes_by_type<std::remove_cvref_t<decltype(policy.evict)>>,
                "kvpolicy: this eviction records what forwards show, in the window and in the pages: observe takes the "
                "signals of the pages, too");
  detail::refuse_window_alone("observe", policy.evict);
  observe(exec, detail::admitting(policy), in, state.window);
}

namespace detail {

/// Makes the checks of one part of a dual cache before its recorders observe.
template <executor Executor, class... Recorders, class Given>
void check_part_to_observe(char const* name, Executor const& exec, std::tuple<Recorders...> const& recorders,
                           Given const& in, state<Executor> const& state) {
  using backend = typename Executor::backend;
  check_same_lanes("observe", name, in.lanes, state.lanes());
  in.check("observe", state.model());
  check_state("observe", state, recorders);
  check_reserved("observe", exec, scratch_to_observe<backend>(recorders, state.model(), state.lanes()));
  refuse_counts<backend>("observe", in.lanes);
}

/// The signals of the pages' entries, as lanes behind those of the window.
template <class Given>
Given behind_window(lanes const& window, Given of_pages) {
  of_pages.lanes = behind(window, of_pages.lanes);
  return of_pages;
}

inline void check_one_batch(lanes const& window, lanes const& pages) {
  bool const same = window.layer_begin == pages.layer_begin && window.layer_end == pages.layer_end &&
                    window.sequences == pages.sequences && window.slots == pages.slots;
  expects(same, "observe", "of_pages.lanes", "other layers or sequences than those of the window",
          "both parts observe one forward");
}

}  // namespace detail

/// The same for an eviction that records what forwards show: the attention that entries receive, the last query rows.
/// `in` has the signals of the window's entries and `of_pages` those of the entries of pages, both of one forward; its
/// `keys` or `attention_probabilities` are of the entries of its lanes. Call it once for each forward and layer, after
/// `append` or `ingest`.
///
/// After an `ingest`, whose chunk recorded what is known when a token is appended, give these signals without numbers
/// (`kv::gate{}`).
///
/// A number of an entry that forwards change (`of_entries`) is recorded in the window from the entry's own forward on,
/// and moves into the pages with it. Attention is that over the window and the pages together. Query rows count up to
/// the newest token of the window that is no draft.
///
/// - throws: `invalid_argument` as `observe` of the admission, if the lanes of the two parts differ in sequences or
///   layers, or if query rows come without what their part needs (`queries.lse`). Then nothing was changed.
template <executor Executor, class Admit, class Select, class Evict, class... Given, class... OfPages>
void observe(Executor& exec, cache_policy<Admit, Select, Evict> const& policy, signals<Given...> const& in,
             signals<OfPages...> const& of_pages, dual_state<Executor>& state) {
  detail::sole_use const in_use("observe", exec);
  using backend = typename Executor::backend;
  constexpr std::size_t begin = detail::recorders_in<Admit>;
  constexpr std::size_t end =
      begin + std::tuple_size_v<decltype(detail::recorders_in_window(detail::recorders_of_part(policy.evict)))>;
  auto const of_window = detail::recorders_of_window(policy);
  auto const recorders = detail::recorders_of_pages(policy);
  signals<OfPages...> const behind_window = detail::behind_window(in.lanes, of_pages);
  detail::check_policy("observe", detail::admitting(policy), state.window.model());
  detail::check_part_to_observe("signals.lanes", exec, of_window, in, state.window);
  detail::check_part_to_observe("of_pages.lanes", exec, recorders, behind_window, state.pages);
  detail::check_one_batch(in.lanes, of_pages.lanes);
  detail::refuse_recorded_rows<backend>(of_window, "observe", in);
  detail::refuse_smaller<backend>("observe", behind_window);
  detail::for_each_of_part<begin, end>(
      of_window, in.lanes, state.window,
      [&](auto const& keeps, recorded_columns const&) { detail::refuse_window<backend>("observe", keeps, in); });
  detail::for_each_of_part<0, detail::recorders_in<Evict>>(
      recorders, of_pages.lanes, state.pages, [&](auto const& keeps, recorded_columns const&) {
        detail::refuse_pages<backend>("observe", keeps, behind_window);
      });
  if constexpr (detail::reads_on_host<backend>) detail::refuse_seen_rows("observe", in, state.window);
  if constexpr (detail::reads_on_host<backend>) detail::refuse_seen_rows("observe", behind_window, state.pages);
  detail::counting_signals<signals<Given...>> const now("observe", exec, in, state.window.counted());
  detail::counting_signals<signals<OfPages...>> const then("observe", exec, behind_window, state.pages.counted());
  detail::record(exec, of_window, now.get(), state.window);
  detail::for_each_of_part<begin, end>(of_window, in.lanes, state.window,
                                       [&](auto const& keeps, recorded_columns const& recorded) {
                                         detail::observe_window(exec, keeps, now.get(), recorded);
                                       });
  detail::for_each_of_part<0, detail::recorders_in<Evict>>(recorders, of_pages.lanes, state.pages,
                                                           [&](auto const& keeps, recorded_columns const& recorded) {
                                                             detail::observe_pages(exec, keeps, then.get(), recorded);
                                                           });
  detail::remember_rows<backend>(in, state.window);
  detail::remember_rows<backend>(behind_window, state.pages);
}
/// The same without an admission: passes the signals to the eviction's recorders. `in.lanes` are the lanes of the
/// cache.
template <executor Executor, class Select, class Evict, class... Given>
void observe(Executor& exec, cache_policy<omitted, Select, Evict> const& policy, signals<Given...> const& in,
             state<Executor>& state) {
  detail::sole_use const in_use("observe", exec);
  detail::check_same_lanes("observe", "signals.lanes", in.lanes, state.lanes());
  in.check("observe", state.model());
  auto const recorders = detail::recorders_of_pages(policy);
  detail::check_state("observe", state, recorders);
  detail::check_reserved(
      "observe", exec, detail::scratch_to_observe<typename Executor::backend>(recorders, state.model(), state.lanes()));
  detail::refuse_counts<typename Executor::backend>("observe", in.lanes);
  detail::refuse_recorded_rows<typename Executor::backend>(detail::recorders_of_part(policy.evict), "observe", in);
  if constexpr (detail::reads_on_host<typename Executor::backend>) detail::refuse_seen_rows("observe", in, state);
  detail::counting_signals<signals<Given...>> const counted("observe", exec, in, state.counted());
  detail::record_some<0, detail::recorders_in<Evict>>(exec, recorders, counted.get(), state);
  detail::remember_rows<typename Executor::backend>(in, state);
}

}  // namespace KVPOLICY_NAMESPACE
