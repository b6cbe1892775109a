// SPDX-License-Identifier: Apache-2.0
// Applier: shortens the list of slots of each lane. No row moves.
#pragma once

#include <kvpolicy/layout/applier.hpp>

namespace KVPOLICY_NAMESPACE {

/// Compaction by indirection, for caches with one token for each unit. Afterwards the lane's list names the kept slots.
/// The other slots are returned in `freed`, and also stand after the list's new end. Attention becomes *shorter*,
/// because it reads the list.
///
///     kv::apply(exec, kv::list_rewrite{.list = my_list, .freed = {my_freed, my_freed_count}}, plan, cache, state);
///
/// - positions and recorded columns move with their entries; rows stay.
/// - cost: one pass over the list. No allocation.
/// - refuses a list that is not the table of the cache's locator, that names a slot outside the pool, or that shares a
///   slot with another sequence although `shared` is false for it.
template <class Shared = nobody>
struct list_rewrite {
  by_lane<int> list{};   ///< the table that the cache's locator reads, as writable memory
  unit_list freed{};     ///< out: slots to free, each once; `capacity` ints for each row of the list
  Shared shared{};       ///< KVPOLICY_HD bool(int slot): true if another owner uses the slot; it is never freed
  unit_list released{};  ///< out: shared slots that the lane no longer uses

  static constexpr auto name = "list_rewrite";
  static constexpr applier_effects effects{.edits_list = true, .leaves_gaps = true};
  using verbs = kvpolicy::verbs<ops::check_list_t, ops::rewrite_list_t>;

  template <executor Executor>
  void refuse(Executor& exec, keep_set const& keep, cache const& in) const {
    detail::refuse_list(exec, edited(), keep, in);
  }

  template <executor Executor>
  void edit(Executor& exec, keep_set const& keep, cache const& part, state<Executor>& state, apply_stats* stats) const {
    detail::edit_list(exec, edited(), keep, part, state, false, stats);
  }

 private:
  [[nodiscard]] constexpr list_edit<Shared> edited() const {
    return {.list = list, .shared = shared, .freed = freed, .released = released};
  }
};

}  // namespace KVPOLICY_NAMESPACE
