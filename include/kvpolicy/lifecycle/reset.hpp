// SPDX-License-Identifier: Apache-2.0
// `reset` makes a slot ready for a new request.
#pragma once

#include <kvpolicy/core/dual_cache.hpp>
#include <kvpolicy/lifecycle/slot.hpp>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <optional>
#include <span>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// A `reset` that has checked and allocated everything: `run` cannot fail. The calls of this folder are made in these
/// two steps, so that one about several caches fails before it has changed any of them.
template <executor Executor>
class slot_reset {
 public:
  slot_reset(Executor& exec, cache const& all, state<Executor>& of, std::span<int const> slots) : state_(&of) {
    check_slots_of("reset", all, of);
    refuse_slots("reset", slots.data(), all.lanes.sequences, 0, static_cast<int>(slots.size()));
    if (slots.empty()) return;
    slots_.emplace(exec, all, slots);
    for (int s = 0; s < static_cast<int>(slots.size()); ++s) {
      if constexpr (reads_on_host<typename Executor::backend>) {
        refuse_counts("reset", slots_->view().lanes, s, s + 1);
      }
    }
  }

  void run(Executor& exec) const {
    if (!slots_) return;
    lanes const& batch = slots_->view().lanes;
    for (int s = 0; s < batch.sequences; ++s) {
      int const slot = slots_->slots()[static_cast<std::size_t>(s)];
      ops::truncate_entries(exec, batch, s, 0, state_->epochs(batch.slots));
      state_->clear(exec, slot, batch.layer_begin, batch.layer_end);
      state_->history().reset(slot);
    }
  }

 private:
  state<Executor>* state_;
  std::optional<listed_slots<Executor>> slots_{};
};

}  // namespace detail

/// Makes slots ready for new requests: each of their lanes has no entries and no drafts, and every recorded column is
/// zero, the memory of a session included. Call it when a request ends or begins. `restore` brings the memory of the
/// new request's session afterwards. Rows of K and V stay as they are; the engine frees their memory.
///
/// - in: `all` is the cache of all slots.
/// - cost: writes the recorded columns of the slots once.
/// - throws: `invalid_argument` if a slot is out of range or listed twice, or if the state is of another cache;
///   `bad_alloc`. Then nothing was changed.
template <executor Executor>
void reset(Executor& exec, cache& all, state<Executor>& state, std::span<int const> slots) {
  detail::sole_use const in_use("reset", exec);
  detail::slot_reset<Executor>(exec, all, state, slots).run(exec);
}
/// The same for one slot.
template <executor Executor>
void reset(Executor& exec, cache& all, state<Executor>& state, int slot) {
  reset(exec, all, state, std::span<int const>(&slot, 1));
}

/// The same for a dual cache. Pages of the slots go back to the free list.
template <executor Executor, class DualState>
void reset(Executor& exec, dual_cache& all, DualState& state, std::span<int const> slots) {
  detail::sole_use const in_use("reset", exec);
  detail::check_dual("reset", all);
  detail::slot_reset<Executor> const window(exec, all.window, state.window, slots);
  detail::slot_reset<Executor> const global(exec, all.pages.entries, state.pages, slots);
  window.run(exec);
  global.run(exec);
  ops::release_pages(exec, all.pages);
}
/// The same for one slot.
template <executor Executor, class DualState>
void reset(Executor& exec, dual_cache& all, DualState& state, int slot) {
  reset(exec, all, state, std::span<int const>(&slot, 1));
}

}  // namespace KVPOLICY_NAMESPACE
