// Device implementation of append_rows: every lane counts what it takes, the last block hands out pages, then it is
// written.
#pragma once

#include <kvpolicy/ops/cuda/promotion_rows.hpp>
#include <kvpolicy/ops/cuda/release_pages.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/cuda/window_counts.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/cuda/window_rows.hpp>    // IWYU pragma: export

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// What a lane takes up, counted before anything is written.
struct lane_take {
  int before = 0;        ///< entries that it holds
  int held = 0;          ///< pages that it holds
  int more[2] = {0, 0};  ///< entries of each source that go
  int over_cap = 0;
  int pages = 0;         ///< that it needs
  int pages_before = 0;  ///< that lower lanes need
};

/// What all lanes take up, and the pages that were free before.
struct all_takes {
  promotion_tally sum{};
  int supply = 0;
};

/// Entries on their way, as a kernel is told.
struct promoted_source {
  std::int64_t const* offset = nullptr;
  int const* ordinal = nullptr;
  int const* below = nullptr;
  by_lane<int> position{};

  [[nodiscard]] KVPOLICY_HD int const* listed(int index) const { return ordinal + offset[index]; }
  /// How many of a lane's listed ordinals go.
  [[nodiscard]] KVPOLICY_HD int going(int index, lane who) const {
    int const* const all = listed(index);
    int begin = 0;
    int end = static_cast<int>(offset[index + 1] - offset[index]);
    if (below == nullptr) return end;
    while (begin < end) {
      int const middle = begin + (end - begin) / 2;
      (all[middle] < below[who.sequence] ? begin : end) = all[middle] < below[who.sequence] ? middle + 1 : middle;
    }
    return begin;
  }
};

/// One source or two, in their order.
struct promoted_sources {
  promoted_source of[2];
  int count = 0;
};

[[nodiscard]] inline promoted_sources sources_of(std::span<promoted const> sources) {
  promoted_sources made;
  for (promoted const& each : sources) {
    made.of[made.count++] = {each.keep->offset, each.keep->ordinal, each.below, each.from->who.position};
  }
  return made;
}

/// Pages of lanes, as a kernel is told.
struct pages_of_lanes {
  lanes who;
  by_lane<int> table;
  by_lane<int> held;
  page_supply supply;
  int page;
  std::int64_t units;

  [[nodiscard]] KVPOLICY_HD int pages_for(int entries) const { return (entries + page - 1) / page; }
};
[[nodiscard]] inline pages_of_lanes pages_of(paged_lanes const& in) {
  return {in.entries.who, in.table, in.held, in.pages, in.page(), in.entries.where.units};
}

/// A thread a lane: what it takes, and what speaks against it. The last block adds up, lane by lane, and looks at the
/// pages to be handed out.
struct count_takes_kernel {
  promoted_sources sources;
  pages_of_lanes to;
  int cap;
  lane_take* takes;
  all_takes* all;
  int* ticket;
  fault_word faults;

  [[nodiscard]] static constexpr std::size_t shared_bytes() {
    return collective_bytes<std::int64_t>() + shared_arena::bytes_of_piece<int>(1);
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    shared_arena arena(block);
    auto* const room = arena.take<std::int64_t>(warp_size + 1);
    auto* const turn = arena.take<int>(1);
    int const step = block.blocks() * block.threads();
    for (int i = block.index() * block.threads() + block.thread(); i < to.who.size(); i += step) {
      takes[i] = take_of(block, i);
    }
    if (last_block(block, ticket, turn)) add_up_lanes(block, room);
  }

 private:
  template <class Block>
  KVPOLICY_HD lane_take take_of(Block& block, int index) const {
    lane const who = to.who.at(index);
    lane_take mine;
    mine.before = *to.who.count.row(who);
    mine.held = *to.held.row(who);
    std::int64_t room = cap < 0 ? 0x7FFFFFFF : cap > mine.before ? cap - mine.before : 0;
    std::int64_t entries = mine.before;
    int last = mine.before > 0 ? to.who.position.row(who)[mine.before - 1] : -1;
    bool asked = false;
    for (int s = 0; s < sources.count; ++s) {
      promoted_source const& source = sources.of[s];
      int const going = source.going(index, who);
      if (going == 0) continue;
      asked = true;
      mine.more[s] = going < room ? going : static_cast<int>(room);
      mine.over_cap += going - mine.more[s];
      room -= mine.more[s];
      entries += mine.more[s];
      int const* const ordinal = source.listed(index);
      int const* const position = source.position.row(who);
      if (position[ordinal[0]] <= last) tell_fault(block, faults, fault::pages_position, index, position[ordinal[0]]);
      last = position[ordinal[going - 1]];
    }
    if (!asked) return mine;
    if (entries > to.who.bound) {
      tell_fault(block, faults, fault::pages_bound, index, entries);
      return mine;
    }
    int const needed = to.pages_for(static_cast<int>(entries)) - mine.held;
    mine.pages = needed > 0 ? needed : 0;
    return mine;
  }

  template <class Block>
  KVPOLICY_HD void add_up_lanes(Block& block, std::int64_t* room) const {
    std::int64_t pages = 0;
    std::int64_t went = 0;
    std::int64_t over_cap = 0;
    for (int first = 0; first < to.who.size(); first += block.threads()) {
      int const i = first + block.thread();
      lane_take mine;
      if (i < to.who.size()) mine = takes[i];
      auto const lower = block_sum_before(block, std::int64_t{mine.pages}, room);
      if (i < to.who.size()) takes[i].pages_before = static_cast<int>(pages + lower.before);
      pages += lower.all;
      went += mine.more[0] + mine.more[1];
      over_cap += mine.over_cap;
    }
    went = block_reduce(block, went, room, add_up{});
    over_cap = block_reduce(block, over_cap, room, add_up{});
    int const free = *to.supply.count;
    if (block.thread() == 0) *all = {{went, over_cap, pages}, free};
    if (block.thread() == 0 && pages > free) tell_fault(block, faults, fault::pages_supply, free, pages);
    for (std::int64_t i = block.thread(); pages <= free && i < pages; i += block.threads()) {
      int const page = to.supply.free[free - 1 - i];
      bool const good = page != to.supply.sentinel && page >= 0 && page < to.units;
      if (!good) tell_fault(block, faults, fault::pages_sentinel, i, page);
    }
  }
};

/// A block a lane: its pages, positions, recorded numbers and counts. Rows follow.
struct write_takes_kernel {
  promoted_sources sources;
  pages_of_lanes to;
  column_pairs columns;
  lane_take const* takes;
  all_takes const* all;
  promotion_tally* told;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const index = block.index();
    if (index == 0 && block.thread() == 0) {
      *to.supply.count = all->supply - static_cast<int>(all->sum.pages);
      if (told != nullptr) *told = all->sum;
    }
    lane_take const mine = takes[index];
    lane const who = to.who.at(index);
    int const more = mine.more[0] + mine.more[1];
    if (more == 0 && mine.pages == 0) return;
    int const* const next = to.supply.free + all->supply - 1 - mine.pages_before;
    int* const table = to.table.row(who) + mine.held;
    for (int p = block.thread(); p < mine.pages; p += block.threads()) table[p] = next[-p];
    for (int e = block.thread(); e < more; e += block.threads()) {
      int const s = e < mine.more[0] ? 0 : 1;
      int const source = sources.of[s].listed(index)[s == 0 ? e : e - mine.more[0]];
      to.who.position.row(who)[mine.before + e] = sources.of[s].position.row(who)[source];
      copy_numbers(columns, s, who, source, mine.before + e);
    }
    if (block.thread() != 0) return;
    *to.held.row(who) = mine.held + mine.pages;
    *to.who.count.row(who) = mine.before + more;
  }
};

/// A warp a row: block i takes piece i % pieces of lane i / pieces.
struct append_rows_kernel {
  promoted_sources sources;
  entry_rows from[2];
  lanes who;
  entry_rows to;
  lane_take const* takes;
  int pieces;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const index = block.index() / pieces;
    lane_take const mine = takes[index];
    lane const one = who.at(index);
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

  static std::size_t scratch(shape const&, lanes const& who) {
    return takes_offset + static_cast<std::size_t>(who.size()) * sizeof(detail::lane_take);
  }

  template <class Executor>
  static void run(Executor& exec, std::span<promoted const> sources, paged_lanes const& to,
                  std::span<held_column const> columns, int cap, promotion_tally* told) {
    for (promoted const& each : sources) detail::refuse_other_rows("promote", *each.from, to.entries);
    expects(exec.reserved() >= scratch(to.entries.shape, to.entries.who), "promote", "exec",
            "an executor without scratch for this batch", "plan and state are made on the executor that runs them");
    auto* const all = reinterpret_cast<detail::all_takes*>(exec.scratch());
    auto* const takes = reinterpret_cast<detail::lane_take*>(exec.scratch() + takes_offset);
    detail::promoted_sources const from = detail::sources_of(sources);
    detail::pages_of_lanes const pages = detail::pages_of(to);
    auto const rows = rows_of(exec, sources, to.entries, from, takes);  // refuses before anything is launched
    std::span<held_column const> const none;
    auto const moved = detail::moved_with("promote", columns, sources.empty() ? none : sources.front().columns,
                                          sources.size() < 2 ? none : sources.back().columns);
    count(exec, {from, pages, cap, takes, all, exec.tickets(), exec.faults()});
    detail::launch_change(exec, {pages.who.size(), exec.numbers().lane_threads, 0},
                          detail::write_takes_kernel{from, pages, moved, takes, all, told});
    detail::launch_change(exec, {to.entries.who.size() * rows.pieces, exec.numbers().row_threads, 0}, rows);
  }

 private:
  static constexpr std::size_t takes_offset = 64;
  static_assert(sizeof(detail::all_takes) <= takes_offset);

  template <class Executor>
  static void count(Executor& exec, detail::count_takes_kernel const& kernel) {
    int const threads = exec.numbers().lane_threads;
    int const blocks = (kernel.to.who.size() + threads - 1) / threads;
    exec.launch({blocks, threads, detail::count_takes_kernel::shared_bytes()}, kernel);
  }

  template <class Executor>
  static detail::append_rows_kernel rows_of(Executor& exec, std::span<promoted const> sources, cache const& to,
                                            detail::promoted_sources const& from, detail::lane_take const* takes) {
    detail::append_rows_kernel kernel{from, {}, to.who, detail::entry_rows_of("promote", to), takes, 1};
    std::int64_t most = 0;
    for (std::size_t s = 0; s < sources.size(); ++s) {
      kernel.from[s] = detail::entry_rows_of("promote", *sources[s].from);
      most += std::int64_t{sources[s].keep->who.bound} * kernel.to.planes.count;
    }
    kernel.pieces = detail::blocks_for_rows(exec, to.who.size(), most);
    return kernel;
  }
};

}  // namespace KVPOLICY_NAMESPACE
