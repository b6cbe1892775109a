// Applier: whole blocks are handed back; a block that holds one kept entry stays as it is.
#pragma once

#include <kvpolicy/layout/edit.hpp>
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {

/// For paged caches that neither move nor list tokens (block tables of OpenVINO, vLLM): a block goes when none of its
/// entries is kept. Entries of blocks that stay are kept with it, beyond the keep set, and the tally tells how many.
/// Attention is *shortened* by whole blocks.
struct drop_blocks {
  by_lane<int> table{};  ///< the table of the cache's locator, to be written
  unit_list freed{};     ///< out: blocks to give back; a row of the table has room for all its blocks

  static constexpr auto name = "drop_blocks";
};

/// Carries a keep set out by whole blocks: table, positions, recorded columns and counts follow, rows stay.
///
/// - cost: one pass over the entries. No allocation.
/// - throws: `invalid_argument` as apply of compact, and if the cache is not paged by a table of its own lanes. Then
///   nothing was changed.
template <executor Executor>
void apply(Executor& exec, drop_blocks const& how, plan<Executor> const& decided, cache& in, state<Executor>& held,
           tally* told = nullptr) {
  keep_set const& keep = decided.keep();
  cache const part = detail::decided_part(exec, decided, in, held);
  bool const paged = in.where.kind == locating::block_table || in.where.kind == locating::csr_pages;
  expects(paged, "apply", "where", "no block table", "this applier drops blocks of a table");
  detail::check_table("table", how.table, in, keep);
  expects((how.freed.unit.data == nullptr) == (how.freed.count.data == nullptr), "apply", "freed", "half of a list",
          "a list of units has memory for the units and for their number");
  if (how.freed.unit.data != nullptr) detail::refuse_shared("freed", how.freed.unit, keep, in.shape);
  if (how.freed.unit.data != nullptr) detail::refuse_shared("freed", how.freed.count, keep, in.shape);
  detail::check_list_scratch(exec, in);
  detail::tell_nothing(exec, told);
  ops::drop_units(exec, keep, part, how.table, std::span<held_column const>(held.columns()), how.freed,
                  told != nullptr ? &told->physical_freed : nullptr);
  detail::tell_kept(exec, keep, part.who, false, told);
}

}  // namespace KVPOLICY_NAMESPACE
