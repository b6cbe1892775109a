// SPDX-License-Identifier: Apache-2.0
// Counts what each lane gets in a promotion, and assigns pages to the new entries, before anything is written.
#pragma once

#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// How many entries and pages one lane gets, counted before anything is written.
struct lane_promotion {
  int before = 0;                               ///< entries in the lane before
  int num_pages = 0;                            ///< pages of the lane before
  int more[2] = {0, 0};                         ///< entries that each source adds
  int over_cap = 0;                             ///< entries that the cap leaves out
  int pages = 0;                                ///< new pages that the lane needs
  int pages_before = 0;                         ///< new pages that lower lanes need
  std::uint64_t fault = device_error::nothing;  ///< what the lane's data do not allow

  /// Notes a fault; of several the lowest one stays.
  KVPOLICY_HD void note(std::uint64_t other) { fault = min_op{}(fault, other); }
};

/// The sums over all lanes, and how many pages were free before.
struct promotion_totals {
  promotion_stats sum{};
  int free_pages = 0;
};

/// The most entries of a lane that one launch decides about while it counts them.
inline constexpr int most_decided_exits = 256;

/// The parts of a promotion's scratch.
struct promotion_scratch {
  promotion_totals* all;
  lane_promotion* promotions;
  std::uint32_t* marks;  ///< a bit for each of a lane's most_decided_exits entries

  promotion_scratch(std::byte* from, int lanes)
      : all(reinterpret_cast<promotion_totals*>(from)),
        promotions(reinterpret_cast<lane_promotion*>(from + promotions_offset)),
        marks(reinterpret_cast<std::uint32_t*>(promotions + lanes)) {}
  [[nodiscard]] static std::size_t bytes(int lanes) {
    return promotions_offset + static_cast<std::size_t>(lanes) * (sizeof(lane_promotion) + most_decided_exits / 8);
  }

 private:
  static constexpr std::size_t promotions_offset = 64;
  static_assert(sizeof(promotion_totals) <= promotions_offset);
};

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
  return {in.entries.lanes, in.table, in.num_pages, in.free_pages, in.page(), in.entries.where.units};
}

/// Counts what one lane gets, source by source, and notes what does not fit. Called by one thread.
class lane_growth {
 public:
  KVPOLICY_HD lane_growth(pages_of_lanes const& to, int cap, int index) : to_(to), index_(index) {
    lane const this_lane = to.lanes.at(index);
    mine_.before = *to.lanes.count.row(this_lane);
    mine_.num_pages = *to.num_pages.row(this_lane);
    capacity_ = cap < 0 ? 0x7FFFFFFF : cap > mine_.before ? cap - mine_.before : 0;
    entries_ = mine_.before;
    last_ = mine_.before > 0 ? to.lanes.position.row(this_lane)[mine_.before - 1] : -1;
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
  int index_;
  lane_promotion mine_;
  int capacity_;
  int last_;
  std::int64_t entries_;
  bool asked_ = false;
};

/// What is added up over lanes, and the lowest fault of any.
struct lane_sums {
  std::int64_t promoted = 0;
  std::int64_t over_cap = 0;
  std::uint64_t fault = device_error::nothing;
};
struct add_lanes {
  [[nodiscard]] KVPOLICY_HD lane_sums operator()(lane_sums const& a, lane_sums const& b) const {
    return {a.promoted + b.promoted, a.over_cap + b.over_cap, min_op{}(a.fault, b.fault)};
  }
};

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
    std::int64_t pages = 0;
    lane_sums sums;
    for (int first = 0; first < to.lanes.size(); first += block.threads()) {
      int const i = first + block.thread();
      lane_promotion mine;
      if (i < to.lanes.size()) mine = promotions[i];
      auto const lower = block.exclusive_sum(storage, std::int64_t{mine.pages});
      if (i < to.lanes.size()) promotions[i].pages_before = static_cast<int>(pages + lower.before);
      pages += lower.all;
      sums = add_lanes{}(sums, {mine.more[0] + mine.more[1], mine.over_cap, mine.fault});
      block.sync();
    }
    sums = block.reduce(storage, sums, add_lanes{});
    int const free = *to.free_list.count;
    if (block.thread() == 0) *all = {{sums.promoted, sums.over_cap, pages}, free};
    if (block.thread() == 0 && sums.fault != device_error::nothing) report_fault(block, faults, sums.fault);
    block.sync();  // a fault of the window is known before one of the pages, which may follow from it
    check_pages(block, pages, free);
  }

 private:
  template <class Block>
  KVPOLICY_HD void check_pages(Block& block, std::int64_t pages, int free) const {
    if (block.thread() == 0 && pages > free) report_fault(block, faults, fault::pages_supply, free, pages);
    for (std::int64_t i = block.thread(); pages <= free && i < pages; i += block.threads()) {
      int const page = to.free_list.free[free - 1 - i];
      bool const good = page != to.free_list.sentinel && page >= 0 && page < to.units;
      if (!good) report_fault(block, faults, fault::pages_sentinel, i, page);
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
