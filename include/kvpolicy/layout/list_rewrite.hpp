// Applier: no row moves; the list of slots that says where an entry lives is shortened.
#pragma once

#include <kvpolicy/layout/edit.hpp>

namespace KVPOLICY_NAMESPACE {

/// Compaction by indirection, for caches with one token a unit: the lane's list names the kept slots, the others are
/// handed back in `freed` and stand behind the list's end. Attention is *shortened*: it reads the list.
///
///     kv::apply(exec, kv::list_rewrite{.list = my_list, .freed = {my_freed, my_freed_count}}, plan, cache, state);
template <class Shared = nobody>
struct list_rewrite {
  by_lane<int> list{};   ///< the table of the cache's locator, to be written
  unit_list freed{};     ///< out: slots to give back, each once; `bound` ints a row of the list
  Shared shared{};       ///< KVPOLICY_HD bool(int slot): another owner refers to it; such a slot is never freed
  unit_list released{};  ///< out: shared slots that the lane does not refer to any more

  static constexpr auto name = "list_rewrite";
};

/// Carries a keep set out by the list alone: positions and recorded columns follow, rows stay.
///
/// - cost: one pass over the list. No allocation.
/// - throws: `invalid_argument` as apply of compact, and if the list is not the locator's, names a slot out of the
/// pool,
///   or shares one with another sequence without `shared` saying so. Then nothing was changed.
template <executor Executor, class Shared>
void apply(Executor& exec, list_rewrite<Shared> const& how, plan<Executor> const& decided, cache& in,
           state<Executor>& held, tally* told = nullptr) {
  list_edit<Shared> const edit{.list = how.list, .shared = how.shared, .freed = how.freed, .released = how.released};
  detail::apply_list(exec, edit, decided, in, held, told, false, [](cache const&) {});
}

}  // namespace KVPOLICY_NAMESPACE
