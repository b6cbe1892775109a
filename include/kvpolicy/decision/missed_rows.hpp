// SPDX-License-Identifier: Apache-2.0
// Finds entries whose query rows a recorder was not shown, where it sums over the rows of all tokens.
#pragma once

#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/decision/forward_rows.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>
#include <string>
#include <tuple>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// True if a recorder keeps a number of each entry to which every row of every forward adds, and the engine does not
/// give that number itself. Erased recorders say it themselves.
template <class Recorder, class Given>
bool sums_rows([[maybe_unused]] Recorder const& keeps, [[maybe_unused]] Given const& in) {
  if constexpr (requires { keeps.sums_rows(in); }) {
    return keeps.sums_rows(in);
  } else if constexpr (of_entries<Recorder>) {
    bool reads = false;
    visit_kinds_of_rows(typename Recorder::needs{}, [&](int) { reads = true; });
    if constexpr (provides<Given, typename Recorder::provides>) {
      return reads && in.template find<typename Recorder::provides>() == nullptr;
    }
    return reads;
  } else {
    return false;
  }
}

}  // namespace detail

/// Refuses a call about a policy whose recorders sum over the query rows of all tokens, such as `h2o`, if some tokens'
/// rows were not shown: with `shows`, before an `observe` of the rows of `in`, those between the last observed row and
/// the first one of `in`; otherwise, before a `decide`, those after the last observed row. `snapkv` and others that
/// need the last rows only are never refused.
///
/// The calls in C and Python make this check. In C++ it is the caller's choice, because sums may also begin with the
/// answer on purpose. The host must be able to read counts and positions.
/// - throws: `invalid_argument` that names the number of entries without a row. Nothing is changed by this call.
/// - cost: a comparison a lane; a binary search where rows are missing.
template <class Policy, class Given, class Executor>
void refuse_missed_rows(char const* call, Policy const& policy, Given const& in, state<Executor> const& state,
                        bool shows) {
  static_assert(detail::reads_on_host<typename Executor::backend>, "kvpolicy: the host reads counts and positions");
  bool const sums =
      std::apply([&](auto const&... each) { return (detail::sums_rows(each, in) || ...); }, recorders_of(policy.score));
  if (!sums) return;
  int const* const slots = detail::readable_slots(in.lanes, true);
  auto const first_of = [](auto const& rows, lane one) {  // the rows were not checked yet
    if (rows.position.data == nullptr) return -1;
    int const valid = rows.valid(one) < rows.rows ? rows.valid(one) : rows.rows;
    int const* const at = rows.position.row(one);
    int r = 0;
    while (r < valid && at[rows.stored(one, r)] < 0) ++r;
    return r < valid ? at[rows.stored(one, r)] : -1;
  };
  auto const check = [&](lane one, int first) {
    int const newest = state.history().newest(slot_of(slots, one.sequence), one.layer);
    if (first <= newest + 1) return;
    lane_entries const of{one, in.lanes.committed(one), 0, in.lanes.position.row(one), in.lanes.order_of(one)};
    int const missed = of.first_at(first) - of.first_at(newest + 1);
    expects(
        missed == 0, call, "queries",
        [&] {
          return "missing of " + std::to_string(missed) + " entries of " + detail::spell_slot_of(in.lanes, slots, one);
        },
        [&] {
          return std::string(detail::facts_of(policy.score).name) + " sums over the rows of all tokens: observe them";
        });
  };
  if (shows) {
    detail::visit_forward_rows(in, state, [&](auto const& rows) {
      detail::for_each_lane(in.lanes, [&](int, lane one) { check(one, first_of(rows, one)); });
    });
  } else {
    detail::for_each_lane(in.lanes, [&](int, lane one) { check(one, in.lanes.newest(one) + 1); });
  }
}

}  // namespace KVPOLICY_NAMESPACE
