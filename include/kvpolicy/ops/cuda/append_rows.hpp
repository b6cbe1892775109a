// Device implementation of append_rows, which promotes entries into paged lanes. The first launch counts what each lane
// gets, and its last block assigns pages. The second writes page tables, positions and counts; the third copies rows.
#pragma once

#include <kvpolicy/ops/cuda/promotion_rows.hpp>
#include <kvpolicy/ops/cuda/release_pages.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/cuda/window_counts.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/cuda/window_rows.hpp>    // IWYU pragma: export

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// How many entries and pages one lane gets, counted before anything is written.
struct lane_promotion {
  int before = 0;        ///< entries in the lane before
  int num_pages = 0;     ///< pages of the lane before
  int more[2] = {0, 0};  ///< entries that each source adds
  int over_cap = 0;      ///< entries that the cap leaves out
  int pages = 0;         ///< new pages that the lane needs
  int pages_before = 0;  ///< new pages that lower lanes need
};

/// The sums over all lanes, and how many pages were free before.
struct promotion_totals {
  promotion_stats sum{};
  int free_pages = 0;
};

/// One source of promoted entries, in a kernel's arguments.
struct promoted_source {
  std::int64_t const* offset = nullptr;
  int const* ordinal = nullptr;
  int const* below = nullptr;
  by_lane<int> position{};

  [[nodiscard]] KVPOLICY_HD int const* listed(int index) const { return ordinal + offset[index]; }
  /// How many of a lane's listed ordinals are promoted: those below `below`, where it is given.
  [[nodiscard]] KVPOLICY_HD int going(int index, lane this_lane) const {
    int const* const all = listed(index);
    int begin = 0;
    int end = static_cast<int>(offset[index + 1] - offset[index]);
    if (below == nullptr) return end;
    while (begin < end) {
      int const middle = begin + (end - begin) / 2;
      (all[middle] < below[this_lane.sequence] ? begin : end) =
          all[middle] < below[this_lane.sequence] ? middle + 1 : middle;
    }
    return begin;
  }
};

/// One source or two. Entries of the first come before those of the second.
struct promoted_sources {
  promoted_source of[2];
  int count = 0;
};

[[nodiscard]] inline promoted_sources sources_of(std::span<promoted const> sources) {
  promoted_sources made;
  for (promoted const& each : sources) {
    made.of[made.count++] = {each.keep->indptr, each.keep->indices, each.below, each.from->lanes.position};
  }
  return made;
}

/// The paged lanes, in a kernel's arguments.
struct pages_of_lanes {
  kvpolicy::lanes lanes;
  by_lane<int> table;
  by_lane<int> num_pages;
  page_free_list free_list;
  int page;
  std::int64_t units;

  [[nodiscard]] KVPOLICY_HD int pages_for(int entries) const { return (entries + page - 1) / page; }
};
[[nodiscard]] inline pages_of_lanes pages_of(paged_lanes const& in) {
  return {in.entries.lanes, in.table, in.num_pages, in.pages, in.page(), in.entries.where.units};
}

/// Counts what each lane gets and checks it, one thread for each lane. The last block adds up the lanes in order, and
/// checks the pages that will be assigned.
struct count_promoted_kernel {
  promoted_sources sources;
  pages_of_lanes to;
  int cap;
  lane_promotion* promotions;
  promotion_totals* all;
  int* ticket;
  device_error faults;

  [[nodiscard]] static constexpr std::size_t shared_bytes() {
    return collective_bytes() + shared_arena::bytes_of_piece<int>(1);
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    shared_arena arena(block);
    auto* const storage = arena.take<collective_storage>(1);
    auto* const last_storage = arena.take<int>(1);
    int const step = block.blocks() * block.threads();
    for (int i = block.index() * block.threads() + block.thread(); i < to.lanes.size(); i += step) {
      promotions[i] = promotion_of(block, i);
    }
    if (last_block(block, ticket, last_storage)) add_up_lanes(block, storage);
  }

 private:
  template <class Block>
  KVPOLICY_HD lane_promotion promotion_of(Block& block, int index) const {
    lane const this_lane = to.lanes.at(index);
    lane_promotion mine;
    mine.before = *to.lanes.count.row(this_lane);
    mine.num_pages = *to.num_pages.row(this_lane);
    std::int64_t capacity = cap < 0 ? 0x7FFFFFFF : cap > mine.before ? cap - mine.before : 0;
    std::int64_t entries = mine.before;
    int last = mine.before > 0 ? to.lanes.position.row(this_lane)[mine.before - 1] : -1;
    bool asked = false;
    for (int s = 0; s < sources.count; ++s) {
      promoted_source const& source = sources.of[s];
      int const going = source.going(index, this_lane);
      if (going == 0) continue;
      asked = true;
      mine.more[s] = going < capacity ? going : static_cast<int>(capacity);
      mine.over_cap += going - mine.more[s];
      capacity -= mine.more[s];
      entries += mine.more[s];
      int const* const ordinal = source.listed(index);
      int const* const position = source.position.row(this_lane);
      if (position[ordinal[0]] <= last) report_fault(block, faults, fault::pages_position, index, position[ordinal[0]]);
      last = position[ordinal[going - 1]];
    }
    if (!asked) return mine;
    if (entries > to.lanes.bound) {
      report_fault(block, faults, fault::pages_bound, index, entries);
      return mine;
    }
    int const needed = to.pages_for(static_cast<int>(entries)) - mine.num_pages;
    mine.pages = needed > 0 ? needed : 0;
    return mine;
  }

  template <class Block>
  KVPOLICY_HD void add_up_lanes(Block& block, collective_storage* storage) const {
    std::int64_t pages = 0;
    std::int64_t went = 0;
    std::int64_t over_cap = 0;
    for (int first = 0; first < to.lanes.size(); first += block.threads()) {
      int const i = first + block.thread();
      lane_promotion mine;
      if (i < to.lanes.size()) mine = promotions[i];
      auto const lower = block.exclusive_sum(storage, std::int64_t{mine.pages});
      if (i < to.lanes.size()) promotions[i].pages_before = static_cast<int>(pages + lower.before);
      pages += lower.all;
      went += mine.more[0] + mine.more[1];
      over_cap += mine.over_cap;
      block.sync();
    }
    went = block.reduce(storage, went, plus_op{});
    block.sync();
    over_cap = block.reduce(storage, over_cap, plus_op{});
    int const free = *to.free_list.count;
    if (block.thread() == 0) *all = {{went, over_cap, pages}, free};
    if (block.thread() == 0 && pages > free) report_fault(block, faults, fault::pages_supply, free, pages);
    for (std::int64_t i = block.thread(); pages <= free && i < pages; i += block.threads()) {
      int const page = to.free_list.free[free - 1 - i];
      bool const good = page != to.free_list.sentinel && page >= 0 && page < to.units;
      if (!good) report_fault(block, faults, fault::pages_sentinel, i, page);
    }
  }
};

/// Writes a lane's pages, positions, recorded columns and counts, one block for each lane. Rows follow in another
/// launch.
struct write_promoted_kernel {
  promoted_sources sources;
  pages_of_lanes to;
  column_pairs columns;
  lane_promotion const* promotions;
  promotion_totals const* all;
  promotion_stats* stats;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const index = block.index();
    if (index == 0 && block.thread() == 0) {
      *to.free_list.count = all->free_pages - static_cast<int>(all->sum.pages);
      if (stats != nullptr) *stats = all->sum;
    }
    lane_promotion const mine = promotions[index];
    lane const this_lane = to.lanes.at(index);
    int const more = mine.more[0] + mine.more[1];
    if (more == 0 && mine.pages == 0) return;
    int const* const next = to.free_list.free + all->free_pages - 1 - mine.pages_before;
    int* const table = to.table.row(this_lane) + mine.num_pages;
    for (int p = block.thread(); p < mine.pages; p += block.threads()) table[p] = next[-p];
    for (int e = block.thread(); e < more; e += block.threads()) {
      int const s = e < mine.more[0] ? 0 : 1;
      int const source = sources.of[s].listed(index)[s == 0 ? e : e - mine.more[0]];
      to.lanes.position.row(this_lane)[mine.before + e] = sources.of[s].position.row(this_lane)[source];
      copy_numbers(columns, s, this_lane, source, mine.before + e);
    }
    if (block.thread() != 0) return;
    *to.num_pages.row(this_lane) = mine.num_pages + mine.pages;
    *to.lanes.count.row(this_lane) = mine.before + more;
  }
};

/// Copies rows, one warp for each row. Block i copies piece i % pieces of lane i / pieces.
struct append_rows_kernel {
  promoted_sources sources;
  entry_rows from[2];
  kvpolicy::lanes lanes;
  entry_rows to;
  lane_promotion const* promotions;
  int pieces;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const index = block.index() / pieces;
    lane_promotion const mine = promotions[index];
    lane const one = lanes.at(index);
    int const planes = to.planes.count;
    int const warps = block.threads() / warp_size;
    int const rows = (mine.more[0] + mine.more[1]) * planes;
    for (int i = block.index() % pieces * warps + warp_id(block); i < rows; i += pieces * warps) {
      int const e = i / planes;
      int const s = e < mine.more[0] ? 0 : 1;
      int const source = sources.of[s].listed(index)[s == 0 ? e : e - mine.more[0]];
      copy_entry(lane_id(block), warp_size, from[s], to, one, source, mine.before + e, i % planes);
    }
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::append_rows_t, Backend> {
  static constexpr bool provided = true;

  static std::size_t scratch(shape const&, lanes const& batch) {
    return promotions_offset + static_cast<std::size_t>(batch.size()) * sizeof(detail::lane_promotion);
  }

  template <class Executor>
  static void run(Executor& exec, std::span<promoted const> sources, paged_lanes const& to,
                  std::span<recorded_column const> columns, int cap, promotion_stats* stats) {
    for (promoted const& each : sources) detail::refuse_other_rows("promote", *each.from, to.entries);
    expects(exec.reserved() >= scratch(to.entries.shape, to.entries.lanes), "promote", "exec",
            "an executor without scratch for this batch", "plan and state are made on the executor that runs them");
    auto* const all = reinterpret_cast<detail::promotion_totals*>(exec.scratch());
    auto* const promotions = reinterpret_cast<detail::lane_promotion*>(exec.scratch() + promotions_offset);
    detail::promoted_sources const from = detail::sources_of(sources);
    detail::pages_of_lanes const pages = detail::pages_of(to);
    auto const rows = rows_of(exec, sources, to.entries, from, promotions);  // throws before anything is launched
    std::span<recorded_column const> const none;
    auto const moved = detail::moved_with("promote", columns, sources.empty() ? none : sources.front().columns,
                                          sources.size() < 2 ? none : sources.back().columns);
    count(exec, {from, pages, cap, promotions, all, exec.tickets(), exec.faults()});
    detail::launch_unless_fault(exec, launch_shape{pages.lanes.size(), exec.threads().lane, 0},
                                detail::write_promoted_kernel{from, pages, moved, promotions, all, stats});
    detail::launch_unless_fault(exec, launch_shape{to.entries.lanes.size() * rows.pieces, exec.threads().row, 0}, rows);
  }

 private:
  static constexpr std::size_t promotions_offset = 64;
  static_assert(sizeof(detail::promotion_totals) <= promotions_offset);

  template <class Executor>
  static void count(Executor& exec, detail::count_promoted_kernel const& kernel) {
    auto const threads = exec.threads().lane;
    int const blocks = (kernel.to.lanes.size() + threads - 1) / threads;
    exec.launch(launch_shape{blocks, threads, detail::count_promoted_kernel::shared_bytes()}, kernel);
  }

  template <class Executor>
  static detail::append_rows_kernel rows_of(Executor& exec, std::span<promoted const> sources, cache const& to,
                                            detail::promoted_sources const& from,
                                            detail::lane_promotion const* promotions) {
    detail::append_rows_kernel kernel{from, {}, to.lanes, detail::entry_rows_of("promote", to), promotions, 1};
    std::int64_t most = 0;
    for (std::size_t s = 0; s < sources.size(); ++s) {
      kernel.from[s] = detail::entry_rows_of("promote", *sources[s].from);
      most += std::int64_t{sources[s].keep->lanes.bound} * kernel.to.planes.count;
    }
    kernel.pieces = detail::blocks_for_rows(exec, to.lanes.size(), most);
    return kernel;
  }
};

}  // namespace KVPOLICY_NAMESPACE
