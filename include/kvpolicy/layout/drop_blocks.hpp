// Applier: whole blocks are handed back; a block that holds one kept entry stays as it is.
#pragma once

#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {

/// For paged caches that neither move nor list tokens (block tables of OpenVINO, vLLM): a block goes when none of its
/// entries is kept. Entries of blocks that stay are kept with it, beyond the keep set, and the tally tells how many.
/// Attention is *shortened* by whole blocks.
///
/// - table, positions, recorded columns and counts follow, rows stay. Cost: one pass over the entries. No allocation.
/// - refuses a cache that is not paged by a table of its own lanes.
struct drop_blocks {
  by_lane<int> table{};  ///< the table of the cache's locator, to be written
  unit_list freed{};     ///< out: blocks to give back; a row of the table has room for all its blocks

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
    ops::drop_units(exec, keep, part, table, std::span<recorded_column const>(state.columns()), freed,
                    stats != nullptr ? &stats->physical_freed : nullptr);
    detail::count_listed(exec, keep, part.lanes, false, stats);
  }
};
static_assert(applier<drop_blocks>);

}  // namespace KVPOLICY_NAMESPACE
