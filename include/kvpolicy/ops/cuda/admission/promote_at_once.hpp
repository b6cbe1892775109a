// SPDX-License-Identifier: Apache-2.0
// Promotes a few entries in one launch of one cluster: it decides about the entries that leave windows, copies those
// that are kept into pages, and drops all of them from their windows.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/cuda/admission/exit_decisions.hpp>
#include <kvpolicy/ops/cuda/admission/window_rows.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A thread's lane, of which neighbouring threads of a warp know the same.
struct leaving_lane {
  lane where;
  decided_lane decided;
  int cursor;                  ///< the row of the ring that holds the window's first entry
  std::uint8_t const* listed;  ///< the ordinals of the entries that it keeps
  int* positions;              ///< of the entries that leave
  int before = 0;              ///< entries that lower lanes list
};

/// All blocks are one cluster. Before its barrier nothing is written but the decision, and all is read of which lanes
/// of other blocks write what they share. After it every block knows the totals.
template <class Function, class Rule>
struct promote_kernel {
  static constexpr int few = 4;  ///< planes, and columns: a kernel's arguments have 4 KiB
  exit_decider<Function, Rule> decider;
  locator ring;
  copied_planes<few> planes;
  a_few<column_pair, few> columns;
  window_drop<few> drop;
  promotion_stats* stats;
  block_exits* blocks;
  int lanes;  ///< of a block
  int width;  ///< threads of a lane
  int most;   ///< entries that leave a lane

  [[nodiscard]] std::size_t shared_bytes() const {
    return collective_bytes() + shared_arena::bytes_of_piece<std::uint8_t>(lanes * most) +
           shared_arena::bytes_of_piece<int>(lanes * most);
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    promotion_counts const& counts = decider.counts;
    shared_arena arena(block);
    auto* const storage = arena.take<collective_storage>(1);
    int const in_block = block.thread() / width;
    int const index = block.index() * lanes + in_block;
    bool const is_there = in_block < lanes && index < decider.keep.segments();
    std::uint64_t const known = *counts.faults.data;
    int const free_pages = *counts.to.free_list.count;
    leaving_lane mine = decide(block, arena, is_there ? index : 0, is_there);
    int const first_page = counts.free_page(block.thread(), free_pages);
    std::int64_t const before = add_up(block, storage, mine);
    block.sync_cluster();
    std::int64_t below = 0;
    block_exits const all = add_up_blocks(block.index(), below);
    promotion_totals const totals{{all.sums.promoted, all.sums.over_cap, all.placed >> block_exits::bits}, free_pages};
    std::uint64_t const of_pages = counts.page_fault(block, storage, totals.sum.pages, free_pages, first_page);
    mine.before = static_cast<int>((below + before) & ((1 << block_exits::bits) - 1));
    write_decision(block, mine, index, is_there);
    if (block.index() == 0) counts.report_faults(block, all.sums.fault, of_pages);
    if (min_op{}(known, min_op{}(all.sums.fault, of_pages)) != device_error::nothing) return;
    if (block.index() == 0 && block.thread() == 0) counts.to.take(totals, stats);
    promote(block, mine, counts.to.free_list.free + free_pages - 1 - ((below + before) >> block_exits::bits));
    kvpolicy::lanes const window = decider.lanes_of_window();
    drop.move(block, window, width, mine.where, mine.decided.leaving, mine.decided.left);
    if (is_there && thread(block) == 0 && drop.leads(window, mine.where)) {
      drop.advance(window, mine.where.sequence, mine.decided.leaving);
    }
  }

 private:
  /// The thread's number among those of its lane.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD int thread(Block& block) const {
    return block.thread() & (width - 1);
  }

  template <class Block>
  [[nodiscard]] KVPOLICY_HD leaving_lane decide(Block& block, shared_arena& arena, int index, bool is_there) const {
    int const in_block = is_there ? block.thread() / width : 0;
    std::uint8_t* const listed = arena.take<std::uint8_t>(lanes * most) + in_block * most;
    leaving_lane made{decider.keep.lanes.at(index), {}, 0, listed, arena.take<int>(lanes * most) + in_block * most};
    made.cursor = *ring.table.row(made.where);
    made.decided = decider.decide(block, index, is_there, width, listed);
    int const* const position = decider.keep.lanes.position.row(made.where);
    for (int i = thread(block); i < made.decided.leaving; i += width) made.positions[i] = position[i];
    block.sync_warp();
    return made;
  }

  /// What lower lanes of the block come to, as `block_exits::placed`. Notes for the other blocks what all of them do.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD std::int64_t add_up(Block& block, collective_storage* storage,
                                                leaving_lane const& mine) const {
    bool const counts = thread(block) == 0;
    lane_promotion const& growth = mine.decided.growth;
    std::int64_t const own = std::int64_t{growth.pages} << block_exits::bits | mine.decided.kept;
    auto const sum = block.exclusive_sum(storage, counts ? own : 0);
    block.sync();
    lane_sums const sums = block.reduce(storage, counts ? lane_sums(growth) : lane_sums{}, add_lanes{});
    if (block.thread() == 0) blocks[block.index()] = {sum.all, sums};
    if (block.thread() == 0 && block.index() == 0) *decider.keep.report = report{};
    return sum.before - (counts ? 0 : own);
  }

  [[nodiscard]] KVPOLICY_HD block_exits add_up_blocks(int block, std::int64_t& below) const {
    block_exits each[most_cluster_blocks];
    for (int b = 0; b < most_cluster_blocks; ++b) each[b] = blocks[b];
    block_exits all;
    for (int b = 0; b < most_cluster_blocks; ++b) {
      if (b == block) below = all.placed;
      all = {all.placed + each[b].placed, add_lanes{}(all.sums, each[b].sums)};
    }
    return all;
  }

  /// Offsets, ordinals and the report.
  template <class Block>
  KVPOLICY_HD void write_decision(Block& block, leaving_lane const& mine, int index, bool is_there) const {
    keep_set const& keep = decider.keep;
    for (int i = thread(block); i < mine.decided.kept; i += width) keep.indices[mine.before + i] = mine.listed[i];
    if (!is_there || thread(block) != 0) return;
    if (index == 0) keep.indptr[0] = 0;
    keep.indptr[index + 1] = mine.before + mine.decided.kept;
    add_to_report(block, keep.report->nan_scores, mine.decided.nan);
    add_to_report(block, keep.report->triggered, mine.decided.drops() ? 1 : 0);
    add_to_report(block, keep.report->unobserved, mine.decided.unobserved ? 1 : 0);
  }

  /// Writes a lane's table, counts, positions, columns and rows.
  template <class Block>
  KVPOLICY_HD void promote(Block& block, leaving_lane const& mine, int const* new_pages) const {
    pages_of_lanes const& to = decider.counts.to;
    lane_promotion const& growth = mine.decided.growth;
    for (int i = 0; i < growth.more[0]; ++i) {
      place const source{ring.unit_of(mine.where.sequence), (mine.cursor + mine.listed[i]) % ring.unit_tokens};
      place const target = to.place_of(growth, mine.where, new_pages, growth.before + i);
      planes.copy({thread(block), width}, {mine.where, source, target});
    }
    to.grow(thread(block), width, growth, mine.where, new_pages);
    for (int i = thread(block); i < growth.more[0]; i += width) {
      to.lanes.position.row(mine.where)[growth.before + i] = mine.positions[mine.listed[i]];
      copy_numbers(columns, mine.where, mine.listed[i], growth.before + i);
    }
  }
};

/// Launches that kernel, if the device has such clusters and the step is small: there is a thread for each lane and
/// each entry that may leave it. False: nothing was launched.
template <class Executor, class Function, class Rule, class Write>
[[nodiscard]] bool launch_at_once(Executor& exec, exit_decider<Function, Rule> const& decider, promoted const& leaving,
                                  oldest_entries const& dropped, Write const& write, int most) {
  using kernel = promote_kernel<Function, Rule>;
  constexpr int blocks = most_cluster_blocks;
  auto const threads = exec.threads().segment;
  int const all = decider.keep.segments();
  bool const is_small = all > 0 && std::int64_t{all} * (most + 1) <= std::int64_t{blocks} * threads;
  if (exec.clusters() < blocks || !is_small) return false;
  if constexpr (sizeof(kernel) <= 4096) {
    few_columns const held = all_columns("promote", leaving.columns);
    if (std::max({write.planes.count(), held.count, write.columns.count}) > kernel::few) return false;
    int const lanes = (all + blocks - 1) / blocks;
    int width = warp_size;
    while (width * lanes > threads) width /= 2;
    copied_planes<kernel::few> const planes{write.planes.from.template as<kernel::few>(),
                                            write.planes.to.template as<kernel::few>(), write.planes.wide};
    kernel const promote{
        decider,
        write.from,
        planes,
        write.columns.template as<kernel::few>(),
        {dropped.oldest, write.from.unit_tokens, held.template as<kernel::few>(), dropped.slid, dropped.epochs},
        write.stats,
        promotion_scratch(exec.scratch(), all).blocks,
        lanes,
        width,
        most};
    exec.launch(launch_shape{blocks, threads, promote.shared_bytes(), blocks}, promote);
    return true;
  }
  return false;
}

}  // namespace KVPOLICY_NAMESPACE::detail
