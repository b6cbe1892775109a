// SPDX-License-Identifier: Apache-2.0
// Counts what each lane gets in a promotion, and assigns pages to the new entries, before anything is written.
#pragma once

#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/cuda/select/bins.hpp>
#include <kvpolicy/ops/cuda/select/emit.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// How many entries and pages one lane gets, counted before anything is written.
struct lane_promotion {
  int before = 0;                               ///< entries in the lane before
  int num_pages = 0;                            ///< pages of the lane before
  int more[2] = {0, 0};                         ///< entries that each source adds
  int over_cap = 0;                             ///< entries that the cap leaves out
  int pages = 0;                                ///< new pages that the lane needs
  int pages_before = 0;                         ///< new pages that lower lanes need
  int next_page = -1;                           ///< the lane's page for its next entry, if it has one already
  int next_unit = 0;                            ///< where that page is
  std::uint64_t fault = device_error::nothing;  ///< what the lane's data do not allow

  /// Notes a fault; of several the lowest one stays.
  KVPOLICY_HD void note(std::uint64_t other) { fault = min_op{}(fault, other); }
};

/// The sums over all lanes, and how many pages were free before.
struct promotion_totals {
  promotion_stats sum{};
  int free_pages = 0;
};

/// What is added up over lanes, and the lowest fault of any.
struct lane_sums {
  std::int64_t promoted = 0;
  std::int64_t over_cap = 0;
  std::uint64_t fault = device_error::nothing;

  lane_sums() = default;
  KVPOLICY_HD explicit lane_sums(lane_promotion const& of)
      : promoted(of.more[0] + of.more[1]), over_cap(of.over_cap), fault(of.fault) {}
};
struct add_lanes {
  [[nodiscard]] KVPOLICY_HD lane_sums operator()(lane_sums a, lane_sums const& b) const {
    a.promoted += b.promoted;
    a.over_cap += b.over_cap;
    a.fault = min_op{}(a.fault, b.fault);
    return a;
  }
};

/// What the lanes of a block of a cluster come to. `placed` has the entries that they list, and above `bits` the pages
/// that they need, so that one prefix sum gives both.
struct alignas(16) block_exits {
  static constexpr int bits = 16;
  std::int64_t placed = 0;
  lane_sums sums{};
};

/// The most entries of a lane that one launch decides about while it counts them. An ordinal below it fits in a byte.
inline constexpr int most_decided_exits = 256;

/// The parts of a promotion's scratch.
struct promotion_scratch {
  promotion_totals* all;
  block_exits* blocks;  ///< of a cluster, in the memory of `all`: they are not used together
  lane_promotion* promotions;
  std::uint8_t* listed;  ///< most_decided_exits ordinals of each lane

  promotion_scratch(std::byte* from, int lanes)
      : all(reinterpret_cast<promotion_totals*>(from)),
        blocks(reinterpret_cast<block_exits*>(from)),
        promotions(reinterpret_cast<lane_promotion*>(from + bytes(0))),
        listed(reinterpret_cast<std::uint8_t*>(promotions + lanes)) {}
  [[nodiscard]] static std::size_t bytes(int lanes) {
    return most_cluster_blocks * sizeof(block_exits) +
           static_cast<std::size_t>(lanes) * (sizeof(lane_promotion) + most_decided_exits);
  }
};

/// The paged lanes, in a kernel's arguments. A lane's new pages are given by a pointer into the free list, to the first
/// of them; the others are before it.
struct pages_of_lanes {
  kvpolicy::lanes lanes;
  by_lane<int> table;
  by_lane<int> num_pages;
  page_free_list free_list;
  int page;
  std::int64_t units;

  [[nodiscard]] KVPOLICY_HD int pages_for(int entries) const { return (entries + page - 1) / page; }

  /// The place of a lane's entry, without the elements of its table that `grow` writes.
  [[nodiscard]] KVPOLICY_HD place place_of(lane_promotion const& mine, lane this_lane, int const* new_pages,
                                           int ordinal) const {
    int const which = ordinal / page;
    int const* const known = which < mine.num_pages ? table.row(this_lane) + which : new_pages + mine.num_pages - which;
    return {which == mine.next_page ? mine.next_unit : *known, ordinal % page};
  }
  /// Writes a lane's table and counts, by thread `first` of `step`.
  KVPOLICY_HD void grow(int first, int step, lane_promotion const& mine, lane this_lane, int const* new_pages) const {
    int const more = mine.more[0] + mine.more[1];
    if (more == 0 && mine.pages == 0) return;
    int* const end = table.row(this_lane) + mine.num_pages;
    for (int p = first; p < mine.pages; p += step) end[p] = new_pages[-p];
    if (first != 0) return;
    *num_pages.row(this_lane) = mine.num_pages + mine.pages;
    *lanes.count.row(this_lane) = mine.before + more;
  }
  /// Takes the pages of all lanes from the free list, by one thread.
  KVPOLICY_HD void take(promotion_totals const& all, promotion_stats* stats) const {
    *free_list.count = all.free_pages - static_cast<int>(all.sum.pages);
    if (stats != nullptr) *stats = all.sum;
  }
};
[[nodiscard]] inline pages_of_lanes pages_of(paged_lanes const& in) {
  return {in.entries.lanes, in.table, in.num_pages, in.free_pages, in.page(), in.entries.where.units};
}

/// Counts what one lane gets, source by source, and notes what does not fit. Called by one thread.
class lane_growth {
 public:
  KVPOLICY_HD lane_growth(pages_of_lanes const& to, int cap, int index)
      : to_(to), lane_(to.lanes.at(index)), index_(index), capacity_(cap) {
    mine_.before = *to.lanes.count.row(lane_);
    mine_.num_pages = *to.num_pages.row(lane_);
  }

  /// Loads what depends on the lane's count, so that other loads can come between.
  KVPOLICY_HD void begin() {
    entries_ = mine_.before;
    if (mine_.before > 0) last_ = to_.lanes.position.row(lane_)[mine_.before - 1];
    int const next = mine_.before / to_.page;
    if (mine_.before >= 0 && next < mine_.num_pages) {
      mine_.next_page = next;
      mine_.next_unit = to_.table.row(lane_)[next];
    }
    capacity_ = capacity_ < 0 ? 0x7FFFFFFF : capacity_ > mine_.before ? capacity_ - mine_.before : 0;
  }

  /// Adds `going` entries of a source, at least one. Their first and last positions are given.
  KVPOLICY_HD void add(int source, int going, int first_position, int last_position) {
    asked_ = true;
    int const more = going < capacity_ ? going : capacity_;
    (source == 0 ? mine_.more[0] : mine_.more[1]) = more;
    mine_.over_cap += going - more;
    capacity_ -= more;
    entries_ += more;
    if (first_position <= last_) mine_.note(device_error::pack(fault::pages_position, index_, first_position));
    last_ = last_position;
  }

  [[nodiscard]] KVPOLICY_HD lane_promotion finish() {
    if (!asked_) return mine_;
    if (entries_ > to_.lanes.capacity) {
      mine_.note(device_error::pack(fault::pages_bound, index_, entries_));
      return mine_;
    }
    int const needed = to_.pages_for(static_cast<int>(entries_)) - mine_.num_pages;
    mine_.pages = needed > 0 ? needed : 0;
    return mine_;
  }

 private:
  pages_of_lanes const& to_;
  lane lane_;
  int index_;
  lane_promotion mine_;
  int capacity_;
  int last_ = -1;
  std::int64_t entries_ = 0;
  bool asked_ = false;
};

struct pages_of_lane {
  lane_promotion* of;
  [[nodiscard]] KVPOLICY_HD int operator()(int index) const { return of[index].pages; }
  KVPOLICY_HD void operator()(int index, std::int64_t before, std::int64_t) const {
    of[index].pages_before = static_cast<int>(before);
  }
};
/// Tells each lane how many pages lower ones have. Returns how many all have. Collective.
template <class Block>
KVPOLICY_HD std::int64_t add_up_pages(Block& block, int count, collective_storage* storage, lane_promotion* of) {
  return place_segments(block, count, storage, pages_of_lane{of}, pages_of_lane{of});
}

/// The counts of a promotion in scratch, with the checks that need all lanes.
struct promotion_counts {
  pages_of_lanes to;
  int cap;
  lane_promotion* promotions;
  promotion_totals* all;
  device_error faults;

  /// Adds up the lanes in order, reports their faults, and checks the pages that will be assigned. Collective; called
  /// by the last block only.
  template <class Block>
  KVPOLICY_HD void add_up_lanes(Block& block, collective_storage* storage) const {
    lane_sums sums;
    for (int i = block.thread(); i < to.lanes.size(); i += block.threads())
      sums = add_lanes{}(sums, lane_sums(promotions[i]));
    std::int64_t const pages = add_up_pages(block, to.lanes.size(), storage, promotions);
    block.sync();
    sums = block.reduce(storage, sums, add_lanes{});
    int const free = *to.free_list.count;
    int const first = free_page(block.thread(), free);
    if (block.thread() == 0) *all = {{sums.promoted, sums.over_cap, pages}, free};
    block.sync();
    report_faults(block, sums.fault, page_fault(block, storage, pages, free, first));
  }

  /// The i-th page that is taken from the list, if it has so many.
  [[nodiscard]] KVPOLICY_HD int free_page(std::int64_t i, int free) const {
    return i < free ? to.free_list.free[free - 1 - i] : to.free_list.sentinel;
  }
  /// The lowest fault of the pages that will be assigned. `first` is that of the thread's number. Collective.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD std::uint64_t page_fault(Block& block, collective_storage* storage, std::int64_t pages,
                                                     int free, int first) const {
    std::uint64_t found = device_error::nothing;
    if (pages > free) found = device_error::pack(fault::pages_supply, free, pages);
    for (std::int64_t i = block.thread(); pages <= free && i < pages; i += block.threads()) {
      int const page = i < block.threads() ? first : free_page(i, free);
      bool const good = page != to.free_list.sentinel && page >= 0 && page < to.units;
      if (!good) found = min_op{}(found, device_error::pack(fault::pages_sentinel, i, page));
    }
    return block.reduce(storage, found, min_op{});
  }

  /// Reports what is wrong with lanes, and then what is with pages, since that may follow from it.
  template <class Block>
  KVPOLICY_HD void report_faults(Block& block, std::uint64_t of_lanes, std::uint64_t of_pages) const {
    if (block.thread() != 0) return;
    if (of_lanes != device_error::nothing) report_fault(block, faults, of_lanes);
    if (of_pages != device_error::nothing) report_fault(block, faults, of_pages);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
