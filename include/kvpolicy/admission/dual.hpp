// SPDX-License-Identifier: Apache-2.0
// The calls of an admission: `make_state` and `make_plan` for a dual cache, `promote` before a decoding step, `ingest`
// after the prefill of a chunk, and `truncate`.
#pragma once

#include <algorithm>
#include <kvpolicy/admission/admission.hpp>
#include <kvpolicy/admission/exit_plan.hpp>
#include <kvpolicy/admission/promote_exits.hpp>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/dual_cache.hpp>
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/layout/append.hpp>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

namespace detail {

template <class Policy>
void check_window(char const* call, Policy const& policy, dual_cache const& both) {
  check_policy(call, policy, both.window.shape);
  expects(policy.window <= both.window.lanes.capacity, call, "admission.window", policy.window,
          [&] { return "the ring has " + std::to_string(both.window.lanes.capacity) + " rows"; });
}

/// The bytes of scratch that are needed to move entries from the window to the pages.
template <class Backend>
std::size_t scratch_to_promote(dual_cache const& both) {
  cache const& pages = both.pages.entries;
  return scratch_of_verbs<Backend>(verbs<ops::append_rows_t, ops::release_pages_t>{}, pages.shape, pages.lanes);
}

}  // namespace detail

/// Makes the states of both parts: the columns of the policy's recorders for the window and for the pages.
///
/// - throws: as `make_state` of a cache, and if the ring has fewer rows than the window or is not made of whole pages.
template <executor Executor, admission_policy Policy>
[[nodiscard]] dual_state<Executor> make_state(Executor& exec, Policy const& policy, dual_cache const& both) {
  detail::check_dual("make_state", both);
  detail::check_window("make_state", policy, both);
  exec.reserve(detail::scratch_to_promote<typename Executor::backend>(both));
  return {make_state(exec, policy, both.window, both.window.lanes.capacity),
          make_state(exec, policy, both.pages.entries)};
}

/// Makes the plan of the decisions about entries that leave the window.
///
/// - throws: as `make_state`.
template <executor Executor, admission_policy Policy>
[[nodiscard]] exit_plan<Executor> make_plan(Executor& exec, Policy const& policy, dual_cache const& both) {
  detail::check_dual("make_plan", both);
  detail::check_window("make_plan", policy, both);
  exec.reserve(detail::scratch_to_promote<typename Executor::backend>(both));
  return {exec, make_plan(exec, policy, both.window)};
}

namespace detail {

/// Removes the oldest entries from the window. If all sequences lose the same number of entries and the slack is large
/// enough, recorded columns slide and no element of them moves. On a device the host does not know these numbers, and
/// the elements move.
template <executor Executor>
void drop_exits(Executor& exec, dual_cache const& both, dual_state<Executor>& of, exit_plan<Executor>& plans) {
  state<Executor>& window = of.window;
  using dropping = implementation<ops::drop_oldest_t, typename Executor::backend>;
  int const sequences = both.window.lanes.sequences;
  int common = -1;  // the number of entries that every sequence loses; -1: it is not known, or they differ
  if constexpr (requires { dropping::all_lose(plans.exits(), sequences); }) {
    common = dropping::all_lose(plans.exits() + both.window.lanes.sequence_begin, sequences);
  }
  lanes const& batch = both.window.lanes;
  bool const all_slots = has_all_slots(batch, window);
  bool const slides = all_slots && common >= 0 && common <= window.slack() - window.slid();
  oldest_entries const leaving = leaving_of(both, of);
  ops::drop_oldest(exec, both.window, leaving.oldest, window.columns(batch), plans.exits(), slides ? -1 : leaving.slid,
                   leaving.epochs);
  if (all_slots) window.slide(slides ? common : -window.slid());
}

/// Notes that requests are in those slots of a batch that hold entries, where the host can read counts. Elsewhere
/// `check_free` finds them by their counts.
template <class Backend, class State>
void use_slots([[maybe_unused]] lanes const& batch, [[maybe_unused]] State& state) {
  if constexpr (reads_on_host<Backend>) {
    for (int s = batch.sequence_begin; s < batch.sequence_end(); ++s) {
      if (*batch.count.row({s, batch.layer_begin, 0}) > 0) state.history().use(host_slot<Backend>(batch, s));
    }
  }
}

/// Checks everything about entries that leave the window that can be checked without reading tables.
template <executor Executor, class Policy, class... Given>
void check_exits(char const* call, Executor const& exec, Policy const& policy, signals<Given...> const& in,
                 dual_cache const& both, dual_state<Executor> const& state, exit_plan<Executor> const& plans) {
  using backend = typename Executor::backend;
  lanes const& window = both.window.lanes;
  shape const& model = both.window.shape;
  check_dual(call, both);
  check_window(call, policy, both);
  check_same_lanes(call, "window.lanes", window, state.window.lanes());
  check_layers(call, both.window, state.window);
  check_same_lanes(call, "pages.lanes", both.pages.entries.lanes, state.pages.lanes());
  check_same_lanes(call, "plan.lanes", window, plans.decided.lanes());
  check_state(call, state.window, recorders_of(policy.score));
  check_plan(call, exec, resolve(policy), window, model, plans.decided);
  check_reserved(call, exec,
                 std::max(scratch_to_decide<backend>(policy, model, window), scratch_to_promote<backend>(both)));
  in.check(call, model);
  refuse_smaller<backend>(call, in.with(window));
  if constexpr (erased<score_of<Policy>>) refuse_given<backend>(call, policy.score, in);
  refuse_counts<backend>(call, window);
  refuse_counts<backend>(call, both.pages.entries.lanes);
}

/// Decides about the entries that leave the window and carries the decision out: the entries of the window first, then
/// the entries `passing` of a chunk. `tokens` has the new tokens of each sequence; it is empty if the executor has
/// already counted them.
template <executor Executor, class Policy, class... Given>
void retire_checked(char const* call, Executor& exec, Policy const& policy, signals<Given...> const& in,
                    dual_cache& both, dual_state<Executor>& state, exit_plan<Executor>& plans,
                    std::span<int const> tokens, promoted const& passing, promotion_stats* stats) {
  using signal_set_type = signal_set_of<Policy, signals<Given...>, Executor>;
  if constexpr (signals_complete<score_of<Policy>, signal_set_type>(typename score_of<Policy>::needs{})) {
    plans.decided.withdraw();  // its decision refers to exits that are now counted anew
    signals<Given...> exits = in;
    exits.lanes = both.window.lanes;
    exits.lanes.count = {plans.exits(), 1, 0, 0};
    exits.lanes.in_flight = nullptr;
    auto const recorders = recorders_of(policy.score);
    signal_set_type const seen(exits, recorders, state.window);
    ring_request const asked{call, policy.window, plans.new_tokens(), tokens};
    std::span<recorded_column const> const columns(state.window.columns(both.window.lanes));
    std::span<recorded_column const> const of_pages(state.pages.columns(both.pages.entries.lanes));
    oldest_entries const dropped = leaving_of(both, state);
    promotion_target<Executor> const to{both.window, columns,       both.pages,    of_pages,
                                        dropped,     plans.decided, plans.exits(), stats};
    if (passing.keep == nullptr && promote_together(exec, policy, seen, asked, to)) {
      if (has_all_slots(both.window.lanes, state.window)) state.window.slide(-state.window.slid());
      return;
    }
    ops::count_exits(exec, both.window.lanes, asked, plans.exits());
    decide_checked(exec, resolve(policy), seen, both.window.shape, plans.decided);
    std::array const sources{promoted{&plans.decided.keep(), &both.window, columns, nullptr}, passing};
    ops::append_rows(exec, std::span(sources).first(passing.keep != nullptr ? 2u : 1u), both.pages, of_pages,
                     policy.cap, stats);
    drop_exits(exec, both, state, plans);
  }
}

}  // namespace detail

/// Frees rows of the window for `tokens[s]` new tokens of each sequence s. The oldest entries leave the window, and
/// those that the policy admits are copied into pages of their lane before anything overwrites them.
///
/// Call it once a step, for all layers. Then call `append(exec, both.window, state.window, ...)`, and let the engine
/// write the new rows. After that a new token sees exactly its row of the vertical-slash mask (see `visible`).
///
/// - in: `in` has the signals of the window's entries.
/// - cost: reads and writes each admitted row once. Recorded columns of the window slide where all sequences lose as
///   many entries, and move where they do not or on a device. No allocation.
/// - throws: `invalid_argument` if the pool has too few pages or a lane is full, or if drafts are
///   in flight where tokens would be appended. A cap prevents that a lane is full. An exception of a functor of the
///   policy passes through. In each case nothing was changed but the plan, which holds no decision or one that was not
///   carried out.
template <executor Executor, admission_policy Policy, class... Given>
void promote(Executor& exec, Policy const& policy, signals<Given...> const& in, dual_cache& both,
             dual_state<Executor>& state, exit_plan<Executor>& plans, std::span<int const> tokens,
             promotion_stats* stats = nullptr) {
  detail::sole_use const in_use("promote", exec);
  auto const sequences = static_cast<std::size_t>(std::max(0, both.window.lanes.sequences));
  static_cast<void>(plans.decided.lanes());  // throws if the plan was moved from
  expects(tokens.size() == sequences && sequences <= plans.tokens().size(), "promote", "tokens", tokens.size(),
          [&] { return "it has a number for each of " + std::to_string(sequences) + " sequences"; });
  if (tokens.data() != plans.tokens().data()) std::copy(tokens.begin(), tokens.end(), plans.tokens().begin());
  detail::check_exits("promote", exec, policy, in, both, state, plans);
  detail::retire_checked("promote", exec, policy, in, both, state, plans, plans.tokens().first(sequences), promoted{},
                         stats);
}

/// The same with one number of new tokens for every sequence.
template <executor Executor, admission_policy Policy, class... Given>
void promote(Executor& exec, Policy const& policy, signals<Given...> const& in, dual_cache& both,
             dual_state<Executor>& state, exit_plan<Executor>& plans, int tokens, promotion_stats* stats = nullptr) {
  detail::sole_use const in_use("promote", exec);
  static_cast<void>(plans.decided.lanes());
  std::fill(plans.tokens().begin(), plans.tokens().end(), tokens);
  auto const sequences = static_cast<std::size_t>(std::max(0, both.window.lanes.sequences));
  promote(exec, policy, in, both, state, plans, plans.tokens().first(std::min(sequences, plans.tokens().size())),
          stats);
}

/// Adds a chunk of any length whose rows are outside of the cache, as after a prefill kernel. Afterwards the last
/// `window` tokens of the sequence are in the window, and the earlier tokens of the chunk that `decided` lists are in
/// pages of their lane. If the scorer and the protection look at each entry alone, the result does not depend on how a
/// prompt is divided into chunks, and is the same as that of token by token.
///
/// - in: `chunk` has the rows of the chunk; its counts are shared by layers and heads. `of_chunk` is the state of the
///   recorders for them, and `decided` the policy's decision about all of them. `in` has the signals of the window's
///   entries.
/// - cost: reads and writes each row that is kept once.
/// - throws: as `promote`, and if `decided` holds no decision or was made for other counts. Then nothing was changed
///   but the plan.
template <executor Executor, admission_policy Policy, class... Given>
void ingest(Executor& exec, Policy const& policy, signals<Given...> const& in, cache const& chunk,
            state<Executor> const& of_chunk, plan<Executor> const& decided, dual_cache& both,
            dual_state<Executor>& state, exit_plan<Executor>& plans, promotion_stats* stats = nullptr) {
  detail::sole_use const in_use("ingest", exec);
  detail::check_cache("ingest", chunk);
  keep_set keep = decided.keep();
  keep.epochs = of_chunk.epochs(keep.lanes.slots);
  expects(keep.indices != nullptr && keep.decides == granularity::lane, "ingest", "decided", "empty or not of lanes",
          "decide comes before ingest");
  expects(keep.lists == side::kept && keep.items == item::token, "ingest", "decided", "dropped entries or pages",
          "it lists what is admitted");
  detail::check_same_lanes("ingest", "decided.lanes", keep.lanes, chunk.lanes);
  detail::check_same_lanes("ingest", "chunk.lanes", chunk.lanes, of_chunk.lanes());
  detail::check_state("ingest", of_chunk, recorders_of(policy.score));
  expects(chunk.lanes.count.layer == 0 && chunk.lanes.count.head == 0 && keep.lanes.size() == chunk.lanes.size(),
          "ingest", "chunk.lanes", "a count for each lane", "all lanes of a sequence read the same tokens");
  bool const of_this = chunk.shape == both.window.shape && chunk.lanes.sequences == both.window.lanes.sequences &&
                       chunk.lanes.sequence_begin == both.window.lanes.sequence_begin &&
                       chunk.lanes.layer_begin == both.window.lanes.layer_begin &&
                       chunk.lanes.layer_end == both.window.lanes.layer_end;
  expects(of_this, "ingest", "chunk.shape", "another model's, batch's or layers'", "the chunk is of this cache");
  detail::check_exits("ingest", exec, policy, in, both, state, plans);
  detail::check_decided_about("ingest", "chunk.lanes", chunk.lanes, keep);
  detail::refuse_counts<typename Executor::backend>("ingest", chunk.lanes);
  ops::refuse_stale(exec, chunk.lanes, keep);
  using rows = implementation<ops::enter_rows_t, typename Executor::backend>;
  if constexpr (requires { rows::refuse(exec, chunk, both.window); }) rows::refuse(exec, chunk, both.window);
  ops::count_passing(exec, chunk.lanes, policy.window, plans.new_tokens(), plans.below());
  std::span<recorded_column const> const columns(state.window.columns_of(of_chunk, chunk.lanes));
  detail::retire_checked("ingest", exec, policy, in, both, state, plans, {}, {&keep, &chunk, columns, plans.below()},
                         stats);
  ops::enter_rows(exec, chunk, columns, both.window, state.window.columns(both.window.lanes), plans.below());
  detail::raise_epochs(exec, state.window, both.window.lanes, plans.new_tokens());
  detail::raise_epochs(exec, state.pages, both.pages.entries.lanes, plans.new_tokens());
  detail::use_slots<typename Executor::backend>(both.window.lanes, state.window);
}

/// Rolls a sequence back: removes the entries at logical position `position` and after it from the window and from the
/// pages, and frees pages that become empty. Entries that have left the window without being admitted do not come back,
/// so only a roll-back of drafts restores the exact state from before.
///
/// - throws: `invalid_argument` if the sequence or the position is out of range. Then nothing was changed.
template <executor Executor>
void truncate(Executor& exec, dual_cache& both, dual_state<Executor>& state, int sequence, int position) {
  detail::sole_use const in_use("truncate", exec);
  detail::check_dual("truncate", both);
  detail::refuse_counts<typename Executor::backend>("truncate", both.window.lanes);
  detail::refuse_counts<typename Executor::backend>("truncate", both.pages.entries.lanes);
  detail::check_truncate(exec, both.window, state.window, sequence, position);
  detail::check_truncate(exec, both.pages.entries, state.pages, sequence, position);
  detail::truncate_checked(exec, both.window, state.window, sequence, position);
  detail::truncate_checked(exec, both.pages.entries, state.pages, sequence, position);
  ops::release_pages(exec, both.pages);
}

// Overloads for policies that do not fit. Each gives one compile error that names the part.

/// @cond
template <executor Executor, detail::unsound_admission Policy>
dual_state<Executor> make_state(Executor&, Policy const&, dual_cache const&) {
  static_cast<void>(detail::admission_hooks<Policy>::check());
  return detail::refused<dual_state<Executor>>();
}

template <executor Executor, detail::unsound_admission Policy>
exit_plan<Executor> make_plan(Executor&, Policy const&, dual_cache const&) {
  static_cast<void>(detail::admission_hooks<Policy>::check());
  return detail::refused<exit_plan<Executor>>();
}

template <executor Executor, detail::unsound_admission Policy, class... Args>
void promote(Executor&, Policy const&, Args const&...) {
  static_cast<void>(detail::admission_hooks<Policy>::check());
}

template <executor Executor, detail::unsound_admission Policy, class... Args>
void ingest(Executor&, Policy const&, Args const&...) {
  static_cast<void>(detail::admission_hooks<Policy>::check());
}
/// @endcond

}  // namespace KVPOLICY_NAMESPACE
