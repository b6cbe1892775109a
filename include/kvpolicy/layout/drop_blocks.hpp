// SPDX-License-Identifier: Apache-2.0
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
/// - a block that several sequences share is freed by the call after which nobody uses it: it is listed in `freed`
/// once.
///   Other users are the rows of the call and those of the slots that it leaves out, as far as the cache's tables have
///   a row for each slot (a slot without a request has a count of 0), and those whom `shared` knows. `physical_freed`
///   counts the entries of the blocks in `freed`.
/// - an engine that counts the references of its blocks takes those of the sequence from the blocks in `freed` and in
///   `released`. Any other engine frees those in `freed`.
/// - cost: one pass over the entries and the blocks; when a block leaves, one over the blocks of the other slots. No
///   allocation.
/// - refuses a cache whose locator has no block table, a table that is shared by lanes that decide for themselves, and
///   a block outside of the pool.
template <class Shared = nobody>
struct drop_blocks {
  by_lane<int> table{};  ///< the table that the cache's locator reads, as writable memory
  unit_list freed{};     ///< out: blocks to free, each once; a row needs memory for all blocks of a lane
  Shared shared{};       ///< KVPOLICY_HD bool(int block): true if another owner uses the block; it is never freed
  unit_list released{};  ///< out: blocks that a lane no longer uses, and others do or free

  static constexpr auto name = "drop_blocks";
  static constexpr applier_effects effects{.drops_blocks = true, .leaves_gaps = true};
  using verbs = kvpolicy::verbs<ops::drop_units_t, ops::check_units_t>;

  template <executor Executor>
  void refuse(Executor& exec, keep_set const& keep, cache const& in) const {
    bool const paged = in.where.kind == locating::block_table || in.where.kind == locating::csr_pages;
    expects(paged, "apply", "where", "no block table", "this applier drops blocks of a table");
    detail::check_table("table", table, in, keep);
    for (unit_list const* to : {&freed, &released}) detail::check_freed(*to, keep, in.shape);
    cache const part = detail::decided_part(in, keep);
    ops::check_units(exec, keep, part, false);
    if constexpr (detail::reads_on_host<typename Executor::backend> && !std::is_same_v<Shared, nobody>) {
      detail::for_each_lane(part.lanes, [&](int, lane one) {  // what it throws, it throws before anything changes
        int const* const block = part.where.list(one);
        for (int e = 0; e < *part.lanes.count.row(one); e += part.where.unit_tokens) {
          static_cast<void>(shared(block[e / part.where.unit_tokens]));
        }
      });
    }
  }

  template <executor Executor>
  void edit(Executor& exec, keep_set const& keep, cache const& part, state<Executor>& state, apply_stats* stats) const {
    if (stats != nullptr) ops::refuse_stale(exec, part.lanes, keep);  // before anything is counted
    detail::clear_stats(exec, stats);
    ops::drop_units(exec, keep, part,
                    list_edit<Shared>{.list = table, .shared = shared, .freed = freed, .released = released},
                    state.columns(part.lanes), stats != nullptr ? &stats->physical_freed : nullptr);
    detail::count_what_stays(exec, keep, part.lanes, false, stats);
  }
};

}  // namespace KVPOLICY_NAMESPACE
