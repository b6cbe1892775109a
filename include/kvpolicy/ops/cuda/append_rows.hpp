// SPDX-License-Identifier: Apache-2.0
// Device implementation of append_rows, which promotes entries into paged lanes. The first launch counts what each lane
// gets, and its last block assigns pages. Then one launch for each source writes page tables, counts and rows.
#pragma once

#include <kvpolicy/ops/cuda/admission/exit_decisions.hpp>
#include <kvpolicy/ops/cuda/admission/promote_at_once.hpp>
#include <kvpolicy/ops/cuda/admission/promotion_counts.hpp>
#include <kvpolicy/ops/cuda/admission/promotion_rows.hpp>
#include <kvpolicy/ops/cuda/admission/release_pages.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/cuda/admission/window_counts.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/cuda/admission/window_rows.hpp>    // IWYU pragma: export
#include <kvpolicy/ops/cuda/lists/rows.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// One source of promoted entries, in a kernel's arguments.
struct promoted_source {
  std::int64_t const* offset = nullptr;
  int const* ordinal = nullptr;
  int const* below = nullptr;
  by_lane<int> position{};

  promoted_source() = default;
  explicit promoted_source(promoted const& from)
      : offset(from.keep->indptr),
        ordinal(from.keep->indices),
        below(from.below),
        position(from.from->lanes.position) {}

  [[nodiscard]] KVPOLICY_HD int const* listed(int index) const { return ordinal + offset[index]; }
  /// How many of a lane's listed ordinals are promoted: those below `below`, where it is given.
  [[nodiscard]] KVPOLICY_HD int going(int index, lane this_lane) const {
    listed_row const all{listed(index), static_cast<int>(offset[index + 1] - offset[index])};
    return below != nullptr ? all.before(below[this_lane.sequence]) : all.count;
  }
};

/// Counts what each lane gets and checks it, one thread for each lane. Entries of the first source come before those
/// of the second. The last block assigns pages.
struct count_promoted_kernel {
  promoted_source source[2];
  int sources;
  promotion_counts counts;
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    counting_storage const shared(block);
    int const step = block.blocks() * block.threads();
    for (int i = block.index() * block.threads() + block.thread(); i < counts.to.lanes.size(); i += step) {
      counts.promotions[i] = promotion_of(i);
    }
    if (last_block(block, ticket, shared.last)) counts.add_up_lanes(block, shared.collective);
  }

 private:
  [[nodiscard]] KVPOLICY_HD lane_promotion promotion_of(int index) const {
    lane const this_lane = counts.to.lanes.at(index);
    lane_growth growth(counts.to, counts.cap, index);
    growth.begin();
    for (int s = 0; s < sources; ++s) {
      int const going = source[s].going(index, this_lane);
      if (going == 0) continue;
      int const* const ordinal = source[s].listed(index);
      int const* const position = source[s].position.row(this_lane);
      growth.add(s, going, position[ordinal[0]], position[ordinal[going - 1]]);
    }
    return growth.finish();
  }
};

/// Writes the entries of one source into their lanes: positions, recorded columns and rows, one warp for each entry.
/// Block i handles piece i % pieces of lane i / pieces. The first piece of a lane writes its page table and counts,
/// which no other block of the launch reads: new pages are found in the free list.
struct write_promoted_kernel {
  promoted_source source{};
  int which = 0;  ///< the source's number; tables and counts are written with source 0
  locator from{};
  pages_of_lanes to{};
  copied_planes<> planes{};
  column_pairs columns{};
  lane_promotion const* promotions = nullptr;
  promotion_totals const* all = nullptr;
  promotion_stats* stats = nullptr;
  int pieces = 1;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const index = block.index() / pieces;
    int const piece = block.index() % pieces;
    lane_promotion const mine = promotions[index];
    lane const this_lane = to.lanes.at(index);
    int const* const new_pages = to.free_list.free + all->free_pages - 1 - mine.pages_before;
    if (which == 0 && block.index() == 0 && block.thread() == 0) to.take(*all, stats);
    if (which == 0 && piece == 0) to.grow(block.thread(), block.threads(), mine, this_lane, new_pages);
    int const more = which == 0 ? mine.more[0] : mine.more[1];
    if (more == 0) return;
    int const first = mine.before + (which == 0 ? 0 : mine.more[0]);
    int const* const ordinal = source.listed(index);
    for (int e = piece * block.threads() + block.thread(); e < more; e += pieces * block.threads()) {
      to.lanes.position.row(this_lane)[first + e] = source.position.row(this_lane)[ordinal[e]];
      copy_numbers(columns, this_lane, ordinal[e], first + e);
    }
    int const warps = block.threads() / warp_size;
    for (int e = piece * warps + warp_id(block); e < more; e += pieces * warps) {
      place const target = to.place_of(mine, this_lane, new_pages, first + e);
      planes.copy({lane_id(block), warp_size}, {this_lane, from.at(this_lane, ordinal[e]), target});
    }
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::append_rows_t, Backend> {
  static std::size_t scratch(shape const&, lanes const& batch) {
    return detail::promotion_scratch::bytes(batch.size());
  }

  /// Takes a launch that counts, and one for each source.
  template <class Executor>
  static void run(Executor& exec, std::span<promoted const> sources, paged_lanes const& to,
                  std::span<recorded_column const> columns, int cap, promotion_stats* stats) {
    writes const all(exec, sources, to, columns, stats);  // throws before anything is launched
    auto const threads = exec.threads().lane;
    int const blocks = (to.entries.lanes.size() + threads - 1) / threads;
    detail::count_promoted_kernel counting{
        {}, static_cast<int>(sources.size()), all.counts(exec, to, cap), exec.tickets()};
    for (int s = 0; s < counting.sources; ++s) counting.source[s] = all.of[s].source;
    exec.launch(launch_shape{blocks, threads, detail::counting_storage::bytes()}, counting);
    all.launch(exec);
  }

  /// True if `promote_exits` takes such a request: the host knows the numbers of new tokens, and few entries leave.
  static bool takes_exits(lanes const& window, ring_request const& asked) {
    return detail::fits_exit_decisions(window, asked);
  }

  /// As `count_exits`, `map`, `select_if`, `run` and `drop_oldest` one after the other, in one launch or in three: the
  /// first decides and counts, the second writes, the third drops. `leaving` names the memory of the decision and of
  /// the window.
  template <class Executor, class Function, class Rule>
  static void promote_exits(Executor& exec, exit_decision<Function, Rule> const& decision, promoted const& leaving,
                            oldest_entries const& dropped, paged_lanes const& to,
                            std::span<recorded_column const> columns, int cap, promotion_stats* stats) {
    std::span<promoted const> const source(&leaving, 1);
    ops::append_rows_t::check(source, to, columns, cap, stats);
    for (int const tokens : decision.asked.host_tokens) detail::refuse_long(decision.asked, tokens);
    int const most = detail::most_exits(leaving.from->lanes, decision.asked);
    writes const all(exec, source, to, columns, stats, most);  // throws before anything is launched
    detail::exit_decider<Function, Rule> const decider(decision, leaving, all.counts(exec, to, cap));
    detail::promotion_scratch const scratch(exec.scratch(), to.entries.lanes.size());
    if (detail::launch_at_once(exec, decider, leaving, dropped, all.of[0], most)) return;
    detail::launch_exit_decisions(exec, decider, scratch.listed);
    all.launch(exec);
    ops::drop_oldest(exec, *leaving.from, dropped.oldest, leaving.columns, decider.keep.lanes.count.data, dropped.slid,
                     dropped.epochs);
  }

 private:
  /// The launches that write: one for each source. Without a source there is one, too, since it writes the stats.
  struct writes {
    detail::write_promoted_kernel of[2];
    int launches;

    /// `most`: no lane gets more entries of a source; by default its keep set's bound.
    template <class Executor>
    writes(Executor& exec, std::span<promoted const> sources, paged_lanes const& to,
           std::span<recorded_column const> columns, promotion_stats* stats, int most = 0x7FFFFFFF)
        : launches(sources.size() > 1 ? 2 : 1) {
      int const lanes = to.entries.lanes.size();
      for (promoted const& each : sources) detail::refuse_other_rows("promote", *each.from, to.entries);
      expects(exec.reserved() >= detail::promotion_scratch::bytes(lanes), "promote", "exec",
              "an executor without scratch for this batch", "plan and state are made on the executor that runs them");
      detail::promotion_scratch const scratch(exec.scratch(), lanes);
      for (int i = 0; i < launches; ++i) {
        of[i].which = i;
        of[i].to = detail::pages_of(to);
        of[i].promotions = scratch.promotions;
        of[i].all = scratch.all;
        of[i].stats = stats;
      }
      for (int i = 0; i < static_cast<int>(sources.size()); ++i) {
        promoted const& source = sources[static_cast<std::size_t>(i)];
        of[i].source = detail::promoted_source(source);
        of[i].from = source.from->where;
        of[i].planes = detail::planes_between("promote", *source.from, to.entries);
        of[i].columns = detail::moved_with("promote", columns, source.columns);
        of[i].pieces = detail::blocks_for_entries(exec, lanes, std::min(most, source.keep->lanes.capacity));
      }
    }

    template <class Executor>
    [[nodiscard]] static detail::promotion_counts counts(Executor& exec, paged_lanes const& to, int cap) {
      detail::promotion_scratch const scratch(exec.scratch(), to.entries.lanes.size());
      return {detail::pages_of(to), cap, scratch.promotions, scratch.all, exec.faults()};
    }

    template <class Executor>
    void launch(Executor& exec) const {
      for (int i = 0; i < launches; ++i) {
        int const blocks = of[i].to.lanes.size() * of[i].pieces;
        detail::launch_unless_fault(exec, launch_shape{blocks, exec.threads().row, 0}, of[i]);
      }
    }
  };
};

}  // namespace KVPOLICY_NAMESPACE
