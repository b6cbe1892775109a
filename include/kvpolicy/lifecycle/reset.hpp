// `reset` makes a slot ready for a new request.
#pragma once

#include <kvpolicy/core/dual_cache.hpp>
#include <kvpolicy/lifecycle/slot.hpp>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

/// Makes slots ready for new requests: each of their lanes has no entries and no drafts, and every recorded column is
/// zero, the memory of a session included. Call it when a request ends or begins. `restore` brings the memory of the
/// new request's session afterwards. Rows of K and V stay as they are; the engine frees their memory.
///
/// - in: `all` is the cache of all slots.
/// - cost: writes the recorded columns of the slots once.
/// - throws: `invalid_argument` if a slot is out of range or listed twice, or if the state is of another cache. Then
///   nothing was changed.
template <executor Executor>
void reset(Executor& exec, cache& all, state<Executor>& state, std::span<int const> slots) {
  detail::check_slots_of("reset", all, state);
  detail::refuse_slots("reset", slots.data(), all.lanes.sequences, 0, static_cast<int>(slots.size()));
  for (int const slot : slots) {
    detail::one_slot<Executor> const one(exec, all, slot);
    ops::truncate_entries(exec, one.view().lanes, 0, 0);
    detail::clear_columns(exec, state, slot);
    state.history().reset(slot);
  }
}
/// The same for one slot.
template <executor Executor>
void reset(Executor& exec, cache& all, state<Executor>& state, int slot) {
  reset(exec, all, state, std::span<int const>(&slot, 1));
}

/// The same for a dual cache. Pages of the slots go back to the free list.
template <executor Executor, class DualState>
void reset(Executor& exec, dual_cache& all, DualState& state, std::span<int const> slots) {
  detail::check_dual("reset", all);
  detail::check_slots_of("reset", all.window, state.window);
  detail::check_slots_of("reset", all.global.entries, state.global);
  reset(exec, all.window, state.window, slots);
  reset(exec, all.global.entries, state.global, slots);
  ops::release_pages(exec, all.global);
}
/// The same for one slot.
template <executor Executor, class DualState>
void reset(Executor& exec, dual_cache& all, DualState& state, int slot) {
  reset(exec, all, state, std::span<int const>(&slot, 1));
}

}  // namespace KVPOLICY_NAMESPACE
