// SPDX-License-Identifier: Apache-2.0
// `reorder` permutes slots, and `grow` makes room for longer sequences.
#pragma once

#include <algorithm>
#include <kvpolicy/decision/make.hpp>
#include <kvpolicy/lifecycle/fork.hpp>
#include <kvpolicy/lifecycle/save.hpp>
#include <span>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// Permutes the requests of all slots: slot i gets what slot order[i] had, as an engine that keeps its batch dense
/// needs it. Beams, of which one may be continued twice, are copied by `fork`.
///
/// - in: `order` has each slot once. `what`: as for `fork`.
/// - cost: reads and writes each row and each number of the slots that change their place twice, through memory that is
///   allocated for the call.
/// - throws: `invalid_argument` if `order` is not a permutation of the slots, or the state is of another cache;
///   `bad_alloc`. Then nothing was changed.
template <executor Executor>
void reorder(Executor& exec, cache& all, state<Executor>& state, std::span<int const> order, rows what = rows::copy) {
  detail::sole_use const in_use("reorder", exec);
  detail::check_slots_of("reorder", all, state);
  expects(std::ssize(order) == all.lanes.sequences, "reorder", "order.size", order.size(),
          [&] { return "there are " + std::to_string(all.lanes.sequences) + " slots"; });
  detail::refuse_slots("reorder", order.data(), all.lanes.sequences, 0, all.lanes.sequences);
  std::vector<int> moved;
  std::vector<std::vector<std::byte>> saved;
  std::size_t largest = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] == static_cast<int>(i)) continue;
    moved.push_back(static_cast<int>(i));
    saved.emplace_back(saved_bytes(exec, all, state, order[i], what));
    largest = std::max(largest, saved.back().size());
  }
  constexpr bool stages = !detail::reads_on_host<typename Executor::backend>;
  typename Executor::template buffer<std::byte> staging(exec, stages ? largest : 0);
  std::byte* const stage = stages ? staging.data() : nullptr;
  std::vector<detail::slot_load<Executor>> loads;
  loads.reserve(moved.size());
  for (std::size_t i = 0; i < moved.size(); ++i) {
    int const slot = moved[i];
    int const from = order[static_cast<std::size_t>(slot)];
    detail::slot_save<Executor>(exec, all, state, from, saved[i], what, stage).run(exec);
    loads.emplace_back("reorder", exec, all, state, slot, saved[i], what, stage);
  }
  detail::slot_reset<Executor> const cleared(exec, all, state, moved);
  cleared.run(exec);
  for (auto const& each : loads) each.run(exec);
}

/// Makes room in a state for longer sequences: replaces it by one for `larger`, with the same requests in its slots.
///
/// - in: `policy` is the policy that the state was made for. `larger` is the cache of all slots with the new bound,
///   whose counts and positions the engine has moved already.
/// - cost: allocates the new columns, and copies each recorded number once. Plans are made anew with `make_plan`.
/// - throws: `invalid_argument` if the state was made for another policy or another model, or if the bound is not
///   larger; `bad_alloc`. Then nothing was changed.
template <executor Executor, class Policy>
void grow(Executor& exec, Policy const& policy, cache const& larger, state<Executor>& state) {
  detail::sole_use const in_use("grow", exec);
  lanes const& old = state.lanes();
  expects(larger.lanes.capacity > old.capacity, "grow", "lanes.capacity", larger.lanes.capacity,
          [&] { return "the state has room for " + std::to_string(old.capacity) + " entries a lane"; });
  kvpolicy::state<Executor> made = make_state(exec, policy, larger, state.slack());
  for (std::size_t i = state.recorder_columns(); i < state.columns().size(); ++i) made.add(state.columns()[i].about);
  lanes same = larger.lanes;
  same.capacity = old.capacity;
  detail::check_same_lanes("grow", "cache.lanes", same, old);
  expects(made.model() == state.model(), "grow", "cache.shape", "another model's", "the state keeps its requests");
  expects(detail::hash_of(made.columns()) == detail::hash_of(state.columns()), "grow", "policy", "another one",
          "the state was made for the policy that it goes on with");
  for (int slot = 0; slot < old.sequences; ++slot) detail::copy_columns(exec, state, slot, made, slot);
  made.history() = state.history();
  state = std::move(made);
}

}  // namespace KVPOLICY_NAMESPACE
