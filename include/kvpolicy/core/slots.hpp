// SPDX-License-Identifier: Apache-2.0
// Lists of slots: batches that are some of the engine's sequences, in any order.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/query_view.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// Some slots of an engine's tables, in any order, each at most once.
///
/// A slot is the row that a request has in the tables of a cache and of a state from its first token to its last: its
/// counts, positions, block table, K and V and recorded columns. A batch is a list of slots, and sequence s of the
/// batch is in slot slots[s]. The tensors of a forward (query rows, numbers of new tokens) have a row for each sequence
/// of the batch, in the order of the list.
struct slot_list {
  int const* slots = nullptr;    ///< in the executor's memory; it must stay as it is until the plan was carried out
  int size = 0;                  ///< how many slots are listed
  int const* on_host = nullptr;  ///< the same list in memory that the host can read. A host executor reads `slots`. A
                                 ///< device executor cannot check a list of which there is no copy on the host.
};

/// The table, with its rows for the sequences of a batch.
template <class T>
[[nodiscard]] constexpr by_lane<T> only(by_lane<T> table, slot_list const& batch) {
  table.slots = batch.slots;
  return table;
}

/// The lanes of the listed slots. `all` are the lanes of all slots.
///
/// - throws: `invalid_argument` if the list is empty or null, or if `all` is a list of slots itself.
[[nodiscard]] inline lanes only(lanes const& all, slot_list const& batch) {
  expects(batch.slots != nullptr, "only", "slots", "null", "a batch is a list of slots");
  expects(batch.size > 0, "only", "slots.size", batch.size, "a batch has at least one sequence");
  expects(all.slots == nullptr, "only", "lanes", "some slots", "a list is taken of all slots");
  lanes some = all;
  some.sequences = batch.size;
  some.count = only(all.count, batch);
  some.position = only(all.position, batch);
  some.request = only(all.request, batch);
  some.order = only(all.order, batch);
  some.slots = batch.slots;
  some.host_slots = batch.on_host;
  some.slot_count = all.sequences;
  return some;
}

/// The locator of the listed slots.
[[nodiscard]] inline locator only(locator where, slot_list const& batch) {
  where.table = only(where.table, batch);
  where.begin = only(where.begin, batch);
  where.slots = batch.slots;
  return where;
}

/// The cache of the listed slots: a view of the same memory. Everything that is called with it is about these slots.
///
///     kv::cache active = kv::only(all, {.slots = running.data(), .size = 8});
///     kv::decide(exec, policy, kv::signals{active.lanes, kv::keys_of(active), queries}, state, plan);
///
/// Tables that an engine makes for each forward (the page list of `csr_pages`) are in the order of the batch already:
/// give `where` itself in this case. The tables of an applier have a row for each slot too: `only(table, batch)`.
///
/// - throws: as `only` of lanes.
[[nodiscard]] inline cache only(cache const& all, slot_list const& batch) {
  cache some = all;
  some.lanes = only(all.lanes, batch);
  some.where = only(all.where, batch);
  return some;
}

/// Rows of a forward whose tensor has a place for each slot, not for each sequence of the batch.
///
/// - throws: `invalid_argument` if the rows come with log-sum-exps, which have no list.
template <class Rows>
  requires std::derived_from<Rows, query_view>
[[nodiscard]] Rows only(Rows rows, slot_list const& batch) {
  expects(rows.lse.data == nullptr, "only", "queries.lse", "given", "its rows are in the order of the batch");
  rows.position = only(rows.position, batch);
  rows.valid_rows = only(rows.valid_rows, batch);
  rows.first_row = only(rows.first_row, batch);
  rows.slots = batch.slots;
  return rows;
}

namespace detail {

/// The list of a batch where the host can read it, or null. `reads` says whether the host can read the executor's
/// memory.
[[nodiscard]] inline int const* readable_slots(lanes const& batch, bool reads) {
  return batch.host_slots != nullptr ? batch.host_slots : reads ? batch.slots : nullptr;
}

#if defined(KVPOLICY_COMPILED)  // the library kvpolicy::compiled holds them
void refuse_slots(char const* call, int const* slots, int total, int first, int last);
void refuse_slots(char const* call, lanes const& batch, bool reads);
#else
/// Refuses slots of the sequences [first, last) that the tables do not have, and slots that are listed twice there.
///
/// Cost: O(last - first) and one bit for each slot of the tables. No allocation.
inline void refuse_slots(char const* call, int const* slots, int total, int first, int last) {
  constexpr int window = 8192;
  for (int begin = 0; begin < (last - first > 1 ? total : 1); begin += window) {
    std::array<std::uint64_t, window / 64> seen{};
    for (int s = first; s < last; ++s) {
      int const slot = slots[s];
      expects(
          slot >= 0 && slot < total, call, "slots",
          [&] { return std::to_string(slot) + " of sequence " + std::to_string(s); },
          [&] { return "the tables have slots 0 to " + std::to_string(total - 1); });
      if (slot < begin || slot >= begin + window) continue;
      std::uint64_t& word = seen[static_cast<std::size_t>(slot - begin) / 64];
      std::uint64_t const bit = std::uint64_t{1} << (slot - begin) % 64;
      expects((word & bit) == 0, call, "slots", [&] { return std::to_string(slot) + ", twice"; },
              "a slot is one sequence of a batch");
      word |= bit;
    }
  }
}

/// Checks the list of a batch, if it has one and the host can read it.
inline void refuse_slots(char const* call, lanes const& batch, bool reads) {
  int const* const slots = readable_slots(batch, reads);
  if (batch.slots != nullptr && slots != nullptr)
    refuse_slots(call, slots, batch.slot_total(), batch.sequence_begin, batch.sequence_end());
}

#endif

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
