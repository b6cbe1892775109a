// SPDX-License-Identifier: Apache-2.0
// One slot of a cache and of a state, as the calls that start, copy and end requests see it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <kvpolicy/core/contract/check.hpp>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/contract/check_pointers.hpp>
#include <kvpolicy/core/executor.hpp>
#include <kvpolicy/core/slots.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <span>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// Whether a call copies the rows of K and V. An engine that moves or shares memory itself (block tables with reference
/// counts, a swapper of its own) leaves them.
enum class rows { copy, leave };

namespace detail {

/// A cache that consists of some slots. It owns their list, in the executor's memory. Moving it leaves its view as it
/// is.
template <executor Executor>
class listed_slots {
 public:
  listed_slots(Executor& exec, cache const& all, std::span<int const> slots)
      : list_(exec, slots.size()), slots_(slots.begin(), slots.end()) {
    exec.copy(reinterpret_cast<std::byte*>(list_.data()), reinterpret_cast<std::byte const*>(slots_.data()),
              slots_.size() * sizeof(int));
    view_ = only(all, {.slots = list_.data(), .size = static_cast<int>(slots_.size()), .on_host = slots_.data()});
  }
  listed_slots(Executor& exec, cache const& all, int slot) : listed_slots(exec, all, std::span<int const>(&slot, 1)) {}

  [[nodiscard]] cache const& view() const { return view_; }
  [[nodiscard]] std::span<int const> slots() const { return slots_; }

 private:
  typename Executor::template buffer<int> list_;
  std::vector<int> slots_;
  cache view_{};
};

/// Refuses a slot that the cache does not have.
inline void check_slot(char const* call, char const* name, cache const& all, int slot) {
  expects(slot >= 0 && slot < all.lanes.sequences, call, name, slot,
          [&] { return "the cache has slots 0 to " + std::to_string(all.lanes.sequences - 1); });
}

/// Refuses a cache that is a part of a batch, and a state of another one.
template <executor Executor>
void check_slots_of(char const* call, cache const& all, state<Executor> const& state) {
  check_cache(call, all);
  lanes const& made = state.lanes();
  bool const whole = all.lanes.slots == nullptr && all.lanes.sequences == all.lanes.slot_total() &&
                     all.lanes.layer_begin == made.layer_begin && all.lanes.layer_end == made.layer_end;
  check_same_lanes(call, "cache.lanes", all.lanes, made);
  expects(whole, call, "cache.lanes", "some slots", "slots are numbered in the cache of all slots");
}

/// Refuses rows whose scales differ between entries or slots and would stay behind when the rows are copied.
inline void check_copied(char const* call, cache const& all, rows what) {
  auto const check = [&](char const* name, plane const& of) {
    bool const differ = of.scales.data != nullptr && (of.scales.token != 0 || of.scales.unit != 0);
    bool const copied =
        std::any_of(all.more.begin(), all.more.end(), [&](plane const& each) { return holds_scales(each, of.scales); });
    expects(what == rows::leave || !differ || copied, call, name, "a number for each token, page or slot",
            "rows are copied, and no plane of cache.more copies these numbers with them");
  };
  check("k.scales", all.k);
  check("v.scales", all.v);
}

/// Waits until the executor's copies are done, so that the host may read what they wrote.
template <executor Executor>
void wait_for(Executor& exec) {
  if constexpr (requires { exec.synchronize(); }) exec.synchronize();
}

/// Copies numbers of the executor's memory to the host.
template <class T, executor Executor>
[[nodiscard]] std::vector<T> fetched(Executor& exec, T const* from, std::size_t count) {
  std::vector<T> made(count);
  exec.copy(reinterpret_cast<std::byte*>(made.data()), reinterpret_cast<std::byte const*>(from), count * sizeof(T));
  wait_for(exec);
  return made;
}

/// The counts of a slot's lanes, in the order of lanes. Lanes that share a count have the same number.
template <executor Executor>
[[nodiscard]] std::vector<int> counts_of(Executor& exec, cache const& all, int slot) {
  lanes const& batch = all.lanes;
  std::vector<int> counts;
  for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) {
    for (int head = 0; head < batch.heads; ++head) {
      bool const shares_layer = batch.count.layer == 0 && layer > batch.layer_begin;
      bool const shares_head = batch.count.head == 0 && head > 0;
      std::size_t const before = counts.size() - (shares_head ? 1 : static_cast<std::size_t>(batch.heads));
      counts.push_back(shares_head || shares_layer
                           ? counts[before]
                           : fetched(exec, batch.count.row(lane{slot, layer, head}), 1).front());
    }
  }
  return counts;
}

/// Refuses a slot that a request uses, because it would be overwritten. A slot is free if its lanes hold nothing and
/// nothing was recorded of them.
template <executor Executor>
void check_free(char const* call, char const* name, Executor& exec, cache const& all, state<Executor> const& state,
                int slot) {
  bool used = state.history().used(slot);
  if (!used) {
    for (int const count : counts_of(exec, all, slot)) used = used || count != 0;
  }
  expects(!used, call, name, slot, "a request uses this slot: reset it first");
}

/// Calls visit(lane) for each row of a table that a slot's lanes have: once for the lanes that share it.
template <class T, class Visit>
void for_each_own_row(by_lane<T> const& table, lanes const& batch, int slot, Visit const& visit) {
  int const layers = table.layer == 0 ? 1 : batch.layers();
  int const heads = table.head == 0 ? 1 : batch.heads;
  for (int i = 0; i < layers * heads; ++i) visit(lane{slot, batch.layer_begin + i / heads, i % heads});
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
