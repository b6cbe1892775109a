// The calls of an admission: states and plans of a dual cache, make_room for a step, take_in for a chunk.
#pragma once

#include <algorithm>
#include <kvpolicy/admission/admission.hpp>
#include <kvpolicy/core/check_counts.hpp>
#include <kvpolicy/core/dual_cache.hpp>
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/layout/append.hpp>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <span>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// What is recorded about both parts of a dual cache.
template <class Executor>
struct dual_state {
  state<Executor> window;
  state<Executor> global;
};

/// A plan for what leaves a window, and how many do of each sequence.
template <class Executor>
class exit_plan {
 public:
  exit_plan(Executor& exec, plan<Executor> leaving)
      : decided(std::move(leaving)),
        exits_(exec, static_cast<std::size_t>(decided.who().sequences)),
        below_(exec, exits_.size()),
        entering_(exec, exits_.size()),
        tokens_(exits_.size()) {}

  plan<Executor> decided;

  /// A number a sequence, in the executor's memory: entries that leave the window now; entries of a chunk that pass it
  /// by; new tokens.
  [[nodiscard]] int* exits() { return exits_.data(); }
  [[nodiscard]] int* below() { return below_.data(); }
  [[nodiscard]] int* entering() { return entering_.data(); }
  /// New tokens of each sequence as the host was told them.
  [[nodiscard]] std::span<int> tokens() { return tokens_; }

 private:
  typename Executor::template buffer<int> exits_;
  typename Executor::template buffer<int> below_;
  typename Executor::template buffer<int> entering_;
  std::vector<int> tokens_;
};

namespace detail {

template <class Policy>
void check_window(char const* call, Policy const& policy, dual_cache const& both) {
  check_policy(call, policy, both.window.shape);
  expects(policy.window <= both.window.who.bound, call, "admission.window", policy.window,
          [&] { return "the ring has " + std::to_string(both.window.who.bound) + " rows"; });
}

/// Bytes of scratch that moving entries between the parts of a dual cache needs.
template <class Backend>
std::size_t scratch_to_promote(dual_cache const& both) {
  cache const& pages = both.global.entries;
  return scratch_of_verbs<Backend>(verbs<ops::append_rows_t, ops::release_pages_t>{}, pages.shape, pages.who);
}

}  // namespace detail

/// The state of both parts: the columns of the policy's recorders in each.
///
/// - throws: as make_state of a cache; and if the ring is shorter than the window, or not made of whole pages.
template <executor Executor, admission_policy Policy>
[[nodiscard]] dual_state<Executor> make_state(Executor& exec, Policy const& policy, dual_cache const& both) {
  detail::check_dual("make_state", both);
  detail::check_window("make_state", policy, both);
  exec.reserve(detail::scratch_to_promote<typename Executor::backend>(both));
  return {make_state(exec, policy, both.window, both.window.who.bound), make_state(exec, policy, both.global.entries)};
}

/// The plan of what leaves the window.
///
/// - throws: as make_state.
template <executor Executor, admission_policy Policy>
[[nodiscard]] exit_plan<Executor> make_plan(Executor& exec, Policy const& policy, dual_cache const& both) {
  detail::check_dual("make_plan", both);
  detail::check_window("make_plan", policy, both);
  exec.reserve(detail::scratch_to_promote<typename Executor::backend>(both));
  return {exec, make_plan(exec, policy, both.window)};
}

namespace detail {

/// The oldest leave the window: where all sequences lose as many, what is recorded slides and nothing moves, until the
/// slack is used up. How many they lose is known where the executor counts: where that is on a device, all of it moves.
template <executor Executor>
void drop_exits(Executor& exec, dual_cache const& both, state<Executor>& window, exit_plan<Executor>& plans) {
  using dropping = implementation<ops::drop_oldest_t, typename Executor::backend>;
  int const sequences = both.window.who.sequences;
  int alike = -1;
  if constexpr (requires { dropping::all_lose(plans.exits(), sequences); }) {
    alike = dropping::all_lose(plans.exits(), sequences);
  }
  bool const slides = alike >= 0 && alike <= window.slack() - window.slid();
  ops::drop_oldest(exec, both.window, both.oldest, std::span<held_column const>(window.columns()), plans.exits(),
                   slides ? -1 : window.slid());
  window.slide(slides ? alike : -window.slid());
}

/// Everything about what leaves a window that can be told without reading tables.
template <executor Executor, class Policy, class... Given>
void check_exits(char const* call, Executor const& exec, Policy const& policy, signals<Given...> const& in,
                 dual_cache const& both, dual_state<Executor> const& held, exit_plan<Executor> const& plans) {
  using backend = typename Executor::backend;
  lanes const& window = both.window.who;
  shape const& model = both.window.shape;
  check_dual(call, both);
  check_window(call, policy, both);
  check_same_lanes(call, "window.who", window, held.window.who());
  check_same_lanes(call, "global.who", both.global.entries.who, held.global.who());
  check_same_lanes(call, "plan.who", window, plans.decided.who());
  check_state(call, held.window, recorders_of(policy.score));
  check_plan(call, exec, policy, window, model, plans.decided);
  check_reserved(call, exec,
                 std::max(scratch_to_decide<backend, Policy>(model, window), scratch_to_promote<backend>(both)));
  in.check(call, model);
  refuse_counts<backend>(call, window);
  refuse_counts<backend>(call, both.global.entries.who);
}

/// Decides about the entries that leave, and carries it out: those of the window first, then `passing` of a chunk.
/// `tokens`: what enters; empty where the executor has counted it.
template <executor Executor, class Policy, class... Given>
void retire_checked(char const* call, Executor& exec, Policy const& policy, signals<Given...> const& in,
                    dual_cache& both, dual_state<Executor>& held, exit_plan<Executor>& plans,
                    std::span<int const> tokens, promoted const& passing, promotion_tally* told) {
  using bag_type = bag_of<Policy, signals<Given...>, Executor>;
  if constexpr (signals_complete<score_of<Policy>, bag_type>(typename score_of<Policy>::needs{})) {
    plans.decided.withdraw();  // it counts the exits that are counted anew
    ops::count_exits(exec, both.window.who, entering{call, policy.window, plans.entering(), tokens}, plans.exits());
    signals<Given...> exits = in;
    exits.who = both.window.who;
    exits.who.count = {plans.exits(), 1, 0, 0};
    exits.who.in_flight = nullptr;
    auto const recorders = recorders_of(policy.score);
    decide_checked(exec, policy, bag_type(exits, recorders, held.window), both.window.shape, plans.decided);
    std::span<held_column const> const columns(held.window.columns());
    std::array const sources{promoted{&plans.decided.keep(), &both.window, columns, nullptr}, passing};
    ops::append_rows(exec, std::span(sources).first(passing.keep != nullptr ? 2u : 1u), both.global,
                     std::span<held_column const>(held.global.columns()), policy.cap, told);
    drop_exits(exec, both, held.window, plans);
  }
}

}  // namespace detail

/// Makes room for `tokens[s]` new tokens in the window of each sequence s: the oldest leave, and those that the policy
/// picks go on in their lane's pages, before anything overwrites them. Once a step, for all layers; then
/// `append(exec, both.window, held.window, ...)`, and the engine writes its rows. In: signals of the window's entries.
///
/// - visible afterwards, with the new tokens: row t of the exact vertical-slash mask.
/// - cost: reads and writes each promoted row once; what is recorded of the window slides. No allocation.
/// - throws: `invalid_argument` if pages run out or a lane is full (a cap prevents both), or drafts stand in the way;
///   what a functor of the policy throws. Then nothing was changed but the plan, which holds no decision, or one that
///   was not carried out.
template <executor Executor, admission_policy Policy, class... Given>
void make_room(Executor& exec, Policy const& policy, signals<Given...> const& in, dual_cache& both,
               dual_state<Executor>& held, exit_plan<Executor>& plans, std::span<int const> tokens,
               promotion_tally* told = nullptr) {
  expects(tokens.size() == plans.tokens().size(), "make_room", "tokens", tokens.size(),
          [&] { return "it has a number for each of " + std::to_string(plans.tokens().size()) + " sequences"; });
  if (tokens.data() != plans.tokens().data()) std::copy(tokens.begin(), tokens.end(), plans.tokens().begin());
  detail::check_exits("make_room", exec, policy, in, both, held, plans);
  detail::retire_checked("make_room", exec, policy, in, both, held, plans, plans.tokens(), promoted{}, told);
}

/// The same number of new tokens for every sequence.
template <executor Executor, admission_policy Policy, class... Given>
void make_room(Executor& exec, Policy const& policy, signals<Given...> const& in, dual_cache& both,
               dual_state<Executor>& held, exit_plan<Executor>& plans, int tokens, promotion_tally* told = nullptr) {
  std::fill(plans.tokens().begin(), plans.tokens().end(), tokens);
  detail::check_exits("make_room", exec, policy, in, both, held, plans);
  detail::retire_checked("make_room", exec, policy, in, both, held, plans, plans.tokens(), promoted{}, told);
}

/// Takes in a chunk of any length that was read outside of the cache, as prefill kernels do: the last `window` tokens
/// of the sequence are in the window afterwards, those before that `decided` lists in their lane's pages. The same as
/// token by token, and as one chunk or many.
///
/// - in: `fresh`, the chunk's rows, its counts shared by layers and heads; `of_fresh`, what is recorded about them;
///   `decided`, what the policy decided about all of them. `in`: signals of the window's entries.
/// - cost: reads and writes each row that stays once.
/// - throws: as make_room, and if `decided` holds no decision or was made for other counts. Then nothing was changed
///   but the plan.
template <executor Executor, admission_policy Policy, class... Given>
void take_in(Executor& exec, Policy const& policy, signals<Given...> const& in, cache const& fresh,
             state<Executor> const& of_fresh, plan<Executor> const& decided, dual_cache& both,
             dual_state<Executor>& held, exit_plan<Executor>& plans, promotion_tally* told = nullptr) {
  detail::check_cache("take_in", fresh);
  keep_set const& keep = decided.keep();
  expects(keep.ordinal != nullptr && keep.decides == granularity::lane, "take_in", "decided", "empty or not of lanes",
          "decide comes before take_in");
  expects(keep.lists == side::kept && keep.of == unit::token, "take_in", "decided", "dropped entries or pages",
          "it lists what is admitted");
  detail::check_same_lanes("take_in", "decided.who", keep.who, fresh.who);
  detail::check_same_lanes("take_in", "fresh.who", fresh.who, of_fresh.who());
  detail::check_state("take_in", of_fresh, recorders_of(policy.score));
  expects(fresh.who.count.layer == 0 && fresh.who.count.head == 0 && keep.who.size() == fresh.who.size(), "take_in",
          "fresh.who", "a count for each lane", "all lanes of a sequence read the same tokens");
  bool const of_this = fresh.shape == both.window.shape && fresh.who.sequences == both.window.who.sequences &&
                       fresh.who.layer_begin == both.window.who.layer_begin &&
                       fresh.who.layer_end == both.window.who.layer_end;
  expects(of_this, "take_in", "fresh.shape", "another model's, batch's or layers'", "the chunk is of this cache");
  detail::check_exits("take_in", exec, policy, in, both, held, plans);
  detail::check_decided_about("take_in", "fresh.who", fresh.who, keep);
  detail::refuse_counts<typename Executor::backend>("take_in", fresh.who);
  ops::refuse_stale(exec, fresh.who, keep);
  using rows = implementation<ops::enter_rows_t, typename Executor::backend>;
  if constexpr (requires { rows::refuse(exec, fresh, both.window); }) rows::refuse(exec, fresh, both.window);
  ops::count_passing(exec, fresh.who, policy.window, plans.entering(), plans.below());
  std::span<held_column const> const columns(of_fresh.columns());
  detail::retire_checked("take_in", exec, policy, in, both, held, plans, {}, {&keep, &fresh, columns, plans.below()},
                         told);
  ops::enter_rows(exec, fresh, columns, both.window, std::span<held_column const>(held.window.columns()),
                  plans.below());
}

/// Rolls a sequence back: entries at logical position `position` and after it are gone from window and pages; empty
/// pages go back to the supply. What had left the window and was not admitted does not come back, so only drafts are
/// rolled back without a trace.
///
/// - throws: `invalid_argument` if the sequence or the position is out of range.
template <executor Executor>
void truncate(Executor& exec, dual_cache& both, dual_state<Executor>& held, int sequence, int position) {
  detail::check_dual("truncate", both);
  detail::refuse_counts<typename Executor::backend>("truncate", both.window.who);
  detail::refuse_counts<typename Executor::backend>("truncate", both.global.entries.who);
  truncate(exec, both.window, held.window, sequence, position);
  truncate(exec, both.global.entries, held.global, sequence, position);
  ops::release_pages(exec, both.global);
}

// Policies that do not fit: one error each, which names the part.

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
void make_room(Executor&, Policy const&, Args const&...) {
  static_cast<void>(detail::admission_hooks<Policy>::check());
}

template <executor Executor, detail::unsound_admission Policy, class... Args>
void take_in(Executor&, Policy const&, Args const&...) {
  static_cast<void>(detail::admission_hooks<Policy>::check());
}

}  // namespace KVPOLICY_NAMESPACE
