// Applier: the few rows that stand behind the new end move into the holes of dropped ones.
#pragma once

#include <kvpolicy/layout/edit.hpp>
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {

/// For decisions that drop few of many, as one a step (TRIM-KV, H2O while decoding): at most as many rows move as are
/// dropped, whatever the lane's length. The list keeps entries in the order of their positions, although their slots
/// are not. Afterwards the lane lives in its lowest slots; those that fell free stand behind the list's end, ascending,
/// so that an engine may write the next token there.
struct overwrite {
  by_lane<int> list{};  ///< the table of the cache's locator, to be written

  static constexpr auto name = "overwrite";
};

/// Carries a keep set out by filling holes: rows of K and V, the list, positions and recorded columns.
///
/// - cost: reads and writes at most one row for each dropped entry, and the list once. No allocation.
/// - throws: `invalid_argument` as apply of list_rewrite, and if slots are shared: rows would be overwritten for
///   another. Then nothing was changed.
template <executor Executor>
void apply(Executor& exec, overwrite const& how, plan<Executor> const& decided, cache& in, state<Executor>& held,
           tally* told = nullptr) {
  keep_set const& keep = decided.keep();
  cache const part = detail::decided_part(exec, decided, in, held);
  detail::check_slots("list", how.list, in, keep);
  detail::check_list_scratch(exec, in);
  ops::check_list(exec, keep, part, list_edit<>{.list = how.list, .distinct = true});
  detail::tell_tails(exec, keep, part, told);
  ops::fill_holes(exec, keep, part, how.list);
  ops::carry_entries(exec, keep, part, std::span<held_column const>(held.columns()));
  ops::set_counts(exec, part.who, keep);
  detail::tell_kept(exec, keep, part.who, false, told);
}

}  // namespace KVPOLICY_NAMESPACE
