// SPDX-License-Identifier: Apache-2.0
// Promotes a few entries in one launch of one cluster: it decides about the entries that leave windows, copies those
// that are kept into pages, and drops all of them from their windows.
#pragma once

#include <kvpolicy/ops/cuda/admission/exit_decisions.hpp>
#include <kvpolicy/ops/cuda/admission/window_rows.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A lane between the two phases.
struct leaving_lane {
  decided_lane decided;
  lane where;
  place oldest;    ///< of the window's first entry
  int listed = 0;  ///< entries that lower lanes of the block list
};

/// An entry that a lane lists.
struct leaving_entry {
  int lane;  ///< the lane's number in its block
  int ordinal;
  int position;
};

/// A block's shared memory.
struct exit_storage {
  collective_storage* collective;
  leaving_lane* lanes;
  leaving_entry* entries;
  entry_marks marks;

  template <class Block>
  KVPOLICY_HD exit_storage(Block& block, int lanes_of_block, int most) {
    shared_arena arena(block);
    collective = arena.take<collective_storage>(1);
    lanes = arena.take<leaving_lane>(lanes_of_block);
    entries = arena.take<leaving_entry>(lanes_of_block * most);
    marks = {arena.take<std::uint32_t>(lanes_of_block * entry_marks::words_of(most)), entry_marks::words_of(most)};
  }
  [[nodiscard]] static std::size_t bytes(int lanes_of_block, int most) {
    using arena = shared_arena;
    return collective_bytes() + arena::bytes_of_piece<leaving_lane>(lanes_of_block) +
           arena::bytes_of_piece<leaving_entry>(lanes_of_block * most) +
           arena::bytes_of_piece<std::uint32_t>(lanes_of_block * entry_marks::words_of(most));
  }
};

/// A thread for each lane and each entry that may leave, and all blocks in one cluster. Before its barrier nothing is
/// written but the decision; all that is both read and written here is read. After it every block knows the totals.
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
  int most;   ///< entries that leave a lane
  int width;  ///< threads that copy a row

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    promotion_counts const& counts = decider.counts;
    exit_storage const shared(block, lanes, most);
    int const left = decider.keep.segments() - block.index() * lanes;
    int const here = left < 0 ? 0 : min_op{}(left, lanes);
    bool const stops = counts.faults.raised();
    int const free_pages = *counts.to.free_list.count;
    decide(block, shared, here);
    block.sync();
    add_up(block, shared, here);
    block.sync_cluster();
    std::int64_t below = 0;
    block_exits const all = add_up_blocks(block.index(), below);
    promotion_totals const totals{{all.sums.promoted, all.sums.over_cap, all.placed >> block_exits::bits}, free_pages};
    std::uint64_t const of_pages = counts.page_fault(block, shared.collective, totals.sum.pages, free_pages);
    int const listed = write_decision(block, shared, here, listed_of(below));
    if (block.index() == 0) counts.report_faults(block, all.sums.fault, of_pages);
    if (stops || all.sums.fault != device_error::nothing || of_pages != device_error::nothing) return;
    if (block.index() == 0 && block.thread() == 0) counts.to.take(totals, stats);
    promote(block, shared, here, listed, counts.to.free_list.free + free_pages - 1 - (below >> block_exits::bits));
    block.sync();  // columns are read above and move below
    leave(block, shared, here);
  }

 private:
  template <class Block>
  KVPOLICY_HD void decide(Block& block, exit_storage const& shared, int here) const {
    int threads = warp_size;
    while (threads > 1 && threads * lanes > block.threads()) threads /= 2;
    int const mine = block.thread() / threads;
    bool const is_there = mine < here;
    int const index = is_there ? block.index() * lanes + mine : 0;
    leaving_lane made{{}, decider.keep.lanes.at(index), {}};
    made.oldest = ring.at(made.where, 0);
    made.decided = decider.decide(block, index, is_there, threads, shared.marks.row(is_there ? mine : 0));
    if (is_there && block.thread() % threads == 0) shared.lanes[mine] = made;
  }

  [[nodiscard]] KVPOLICY_HD static int listed_of(std::int64_t placed) {
    return static_cast<int>(placed & ((1 << block_exits::bits) - 1));
  }

  /// Lists the entries of the block's lanes, and notes for the other blocks what these lanes come to.
  template <class Block>
  KVPOLICY_HD void add_up(Block& block, exit_storage const& shared, int here) const {
    int const t = block.thread();
    leaving_lane mine{};
    if (t < here) mine = shared.lanes[t];
    lane_promotion const& growth = mine.decided.growth;
    auto const sum =
        block.exclusive_sum(shared.collective, std::int64_t{growth.pages} << block_exits::bits | mine.decided.kept);
    block.sync();
    lane_sums const sums = block.reduce(shared.collective, lane_sums(growth), add_lanes{});
    if (t == 0) blocks[block.index()] = {sum.all, sums};
    if (t == 0 && block.index() == 0) *decider.keep.report = report{};
    if (t >= here) return;
    shared.lanes[t].listed = listed_of(sum.before);
    shared.lanes[t].decided.growth.pages_before = static_cast<int>(sum.before >> block_exits::bits);
    leaving_entry* next = shared.entries + listed_of(sum.before);
    int const* const position = decider.keep.lanes.position.row(mine.where);
    for (int first = 0; first < mine.decided.leaving; first += warp_size) {
      for (std::uint32_t left = shared.marks.row(t)[first / warp_size]; left != 0; left &= left - 1) {
        int const ordinal = first + lowest_bit(left);
        *next++ = {t, ordinal, position[ordinal]};
      }
    }
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

  /// Offsets, ordinals and the report. Returns how many entries the block's lanes list.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD int write_decision(Block& block, exit_storage const& shared, int here, int below) const {
    keep_set const& keep = decider.keep;
    int const t = block.thread();
    if (block.index() == 0 && t == 0) keep.indptr[0] = 0;
    if (t < here) {
      decided_lane const& mine = shared.lanes[t].decided;
      keep.indptr[block.index() * lanes + t + 1] = below + shared.lanes[t].listed + mine.kept;
      add_to_report(block, keep.report->nan_scores, mine.nan);
      add_to_report(block, keep.report->triggered, mine.drops() ? 1 : 0);
      add_to_report(block, keep.report->unobserved, mine.unobserved ? 1 : 0);
    }
    int const listed = here == 0 ? 0 : shared.lanes[here - 1].listed + shared.lanes[here - 1].decided.kept;
    for (int i = t; i < listed; i += block.threads()) keep.indices[below + i] = shared.entries[i].ordinal;
    return listed;
  }

  /// Writes tables, counts, positions, columns and rows.
  template <class Block>
  KVPOLICY_HD void promote(Block& block, exit_storage const& shared, int here, int listed, int const* new_pages) const {
    pages_of_lanes const& to = decider.counts.to;
    int const t = block.thread();
    planes.copy(row_threads{t % width, width, t / width, block.threads() / width}, listed, [&](int i) {
      leaving_entry const one = shared.entries[i];
      leaving_lane const& mine = shared.lanes[one.lane];
      lane_promotion const& growth = mine.decided.growth;
      int const e = i - mine.listed;
      bool const goes = e < growth.more[0];
      int const row = mine.oldest.token + one.ordinal;
      place const source{mine.oldest.unit, row < ring.unit_tokens ? row : row - ring.unit_tokens};
      place const target =
          to.place_of(growth, mine.where, new_pages - growth.pages_before, growth.before + (goes ? e : 0));
      return copied_entry{mine.where, source, target, goes};
    });
    if (t < here) {
      lane_promotion const& mine = shared.lanes[t].decided.growth;
      to.grow(0, 1, mine, shared.lanes[t].where, new_pages - mine.pages_before);
    }
    for (int i = t; i < listed; i += block.threads()) {
      leaving_entry const one = shared.entries[i];
      leaving_lane const& mine = shared.lanes[one.lane];
      lane_promotion const& growth = mine.decided.growth;
      int const e = i - mine.listed;
      if (e >= growth.more[0]) continue;
      to.lanes.position.row(mine.where)[growth.before + e] = one.position;
      copy_numbers(columns, mine.where, one.ordinal, growth.before + e);
    }
  }

  /// Drops the entries that leave, one warp for each lane.
  template <class Block>
  KVPOLICY_HD void leave(Block& block, exit_storage const& shared, int here) const {
    kvpolicy::lanes const window = decider.lanes_of_window();
    for (int i = warp_id(block); i < here; i += block.threads() / warp_size) {
      leaving_lane const& mine = shared.lanes[i];
      drop.move(block, window, mine.where, mine.decided.leaving, mine.decided.left);
      if (lane_id(block) == 0 && drop.leads(window, mine.where)) {
        drop.advance(window, mine.where.sequence, mine.decided.leaving);
      }
    }
  }
};

/// Launches that kernel, if the device has such clusters and the step is small. False: nothing was launched.
template <class Executor, class Function, class Rule, class Write>
[[nodiscard]] bool launch_at_once(Executor& exec, exit_decider<Function, Rule> const& decider, promoted const& leaving,
                                  oldest_entries const& dropped, Write const& write, int most) {
  using kernel = promote_kernel<Function, Rule>;
  few_columns const held = all_columns("promote", leaving.columns);
  if constexpr (sizeof(kernel) <= 4096) {
    constexpr int blocks = most_cluster_blocks;
    auto const threads = exec.threads().segment;
    int const all = decider.keep.segments();
    bool const is_small = std::int64_t{all} * (most + 1) <= std::int64_t{blocks} * threads;
    bool const fits =
        write.planes.count() <= kernel::few && held.count <= kernel::few && write.columns.count <= kernel::few;
    if (exec.clusters() < blocks || !is_small || !fits || all == 0) return false;
    int const lanes = (all + blocks - 1) / blocks;
    int width = 1;
    for (int p = 0; p < write.planes.count(); ++p) {
      while (width < warp_size && 16 * width < write.planes.to.of[p].bytes()) width *= 2;
    }
    exec.launch(
        launch_shape{blocks, threads, exit_storage::bytes(lanes, most), blocks},
        kernel{decider,
               write.from,
               {write.planes.from.template as<kernel::few>(), write.planes.to.template as<kernel::few>(),
                write.planes.wide},
               write.columns.template as<kernel::few>(),
               {dropped.oldest, write.from.unit_tokens, held.template as<kernel::few>(), dropped.slid, dropped.epochs},
               write.stats,
               promotion_scratch(exec.scratch(), all).blocks,
               lanes,
               most,
               width});
    return true;
  }
  return false;
}

}  // namespace KVPOLICY_NAMESPACE::detail
