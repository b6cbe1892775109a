// Applier: no row moves; the list of slots that says where an entry lives is shortened.
#pragma once

#include <kvpolicy/layout/applier.hpp>

namespace KVPOLICY_NAMESPACE {

/// Compaction by indirection, for caches with one token a unit: the lane's list names the kept slots, the others are
/// handed back in `freed` and stand behind the list's end. Attention is *shortened*: it reads the list.
///
///     kv::apply(exec, kv::list_rewrite{.list = my_list, .freed = {my_freed, my_freed_count}}, plan, cache, state);
///
/// - positions and recorded columns follow, rows stay. Cost: one pass over the list. No allocation.
/// - refuses a list that is not the locator's, names a slot out of the pool, or shares one with another sequence
/// without
///   `shared` saying so.
template <class Shared = nobody>
struct list_rewrite {
  by_lane<int> list{};   ///< the table of the cache's locator, to be written
  unit_list freed{};     ///< out: slots to give back, each once; `bound` ints a row of the list
  Shared shared{};       ///< KVPOLICY_HD bool(int slot): another owner refers to it; such a slot is never freed
  unit_list released{};  ///< out: shared slots that the lane does not refer to any more

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
static_assert(applier<list_rewrite<>>);

}  // namespace KVPOLICY_NAMESPACE
