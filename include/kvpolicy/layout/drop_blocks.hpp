// Applier: frees whole blocks. A block with at least one kept entry stays as it is.
#pragma once

#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {

/// For paged caches in which tokens can neither be moved nor listed (block tables of vLLM and OpenVINO). A block is
/// dropped if none of its entries is kept. All entries of the other blocks are kept, including those that the keep set
/// does not list (`apply_stats::attended_length` counts them too). Attention becomes *shorter* by whole blocks.
///
/// - the table, positions, recorded columns and counts are updated; rows stay.
/// - cost: one pass over the entries. No allocation.
/// - refuses a cache whose locator has no block table, and a table that is shared by lanes that decide for themselves.
struct drop_blocks {
  by_lane<int> table{};  ///< the table that the cache's locator reads, as writable memory
  unit_list freed{};     ///< out: blocks to free; a row needs memory for all blocks of a lane

  static constexpr auto name = "drop_blocks";
  static constexpr applier_effects effects{.drops_blocks = true, .leaves_gaps = true};
  using verbs = kvpolicy::verbs<ops::drop_units_t>;

  void refuse(auto&, keep_set const& keep, cache const& in) const {
    bool const paged = in.where.kind == locating::block_table || in.where.kind == locating::csr_pages;
    expects(paged, "apply", "where", "no block table", "this applier drops blocks of a table");
    detail::check_table("table", table, in, keep);
    detail::check_freed(freed, keep, in.shape);
  }

  template <executor Executor>
  void edit(Executor& exec, keep_set const& keep, cache const& part, state<Executor>& state, apply_stats* stats) const {
    detail::count_nothing(exec, stats);
    ops::drop_units(exec, keep, part, table, state.columns(part.lanes), freed,
                    stats != nullptr ? &stats->physical_freed : nullptr);
    detail::count_listed(exec, keep, part.lanes, false, stats);
  }
};

}  // namespace KVPOLICY_NAMESPACE
