// SPDX-License-Identifier: Apache-2.0
// Host implementations of the verbs that copy entries from one cache into another.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/host/copy_entries.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/unit_marks.hpp>
#include <kvpolicy/ops/host/window_rows.hpp>  // IWYU pragma: export
#include <string>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::append_rows_t, host> {
  static void run(host_executor& exec, std::span<promoted const> sources, paged_lanes const& to,
                  std::span<recorded_column const> columns, int cap, promotion_stats* stats) {
    check(sources, to, cap);
    lanes const& batch = to.entries.lanes;
    promotion_stats sum;
    detail::for_each_lane(batch, [&](int i, lane one) { take_pages(sources, to, i, one, cap, sum); });
    exec.for_each(sum.promoted > 0 ? batch.size() : 0, [&](int i, int) {
      int const next = i + lanes_ahead;
      if (next < batch.size()) fetch(sources.front(), to.entries, columns, next, cap);
      append(sources, to.entries, columns, i, cap);
    });
    detail::for_each_lane(batch, [&](int i, lane one) {
      int& count = *batch.count.row(one);
      count += std::min(listed(sources, i), capacity_left(cap, count));
    });
    if (stats != nullptr) *stats = sum;
  }

 private:
  static constexpr int lanes_ahead = 6;
  static constexpr std::size_t entries_ahead = 8;

  /// Prefetches the first promoted entry of a lane. Mostly it is the only one, and the processor cannot predict its
  /// address.
  [[gnu::always_inline]] static inline void fetch(promoted const& source, cache const& to,
                                                  std::span<recorded_column const> columns, int index, int cap) {
    lane const this_lane = to.lanes.at(index);
    int const count = *to.lanes.count.row(this_lane);
    if (promoted_of(source, index).empty() || capacity_left(cap, count) == 0) return;
    fetch_entry(*source.from, to, this_lane, promoted_of(source, index).front(), count);
    __builtin_prefetch(to.lanes.position.row(this_lane) + count, 1);
    for (recorded_column const& each : columns) {
      if (each.about.extent != column_extent::lane_entry) continue;
      __builtin_prefetch(each.rows.row(this_lane) + std::int64_t{count} * each.about.bytes, 1);
    }
  }

  /// Prefetches the rows that entry `ordinal` is copied from, and those of entry `at` that it is copied to. Returns
  /// where they are, which takes divisions.
  [[gnu::always_inline]] static inline detail::entry_places fetch_entry(cache const& from, cache const& to,
                                                                        lane this_lane, int ordinal, int at) {
    place const here = from.where.at(this_lane, ordinal);
    place const there = to.where.at(this_lane, at);
    detail::fetch_row(from.k, from.k.row(this_lane.layer, here, this_lane.head));
    detail::fetch_row(to.k, to.k.row(this_lane.layer, there, this_lane.head));
    if (detail::is_latent(to)) return {here, there};
    detail::fetch_row(from.v, from.v.row(this_lane.layer, here, this_lane.head));
    detail::fetch_row(to.v, to.v.row(this_lane.layer, there, this_lane.head));
    return {here, there};
  }

  /// The listed ordinals of a lane that are promoted.
  static std::span<int const> promoted_of(promoted const& source, int index) {
    std::span<int const> const all = source.keep->listed(index);
    if (source.below == nullptr) return all;
    lanes const& batch = source.keep->lanes;
    auto const end = std::lower_bound(all.begin(), all.end(), source.below[batch.at(index).sequence]);
    return all.first(static_cast<std::size_t>(end - all.begin()));
  }
  static int capacity_left(int cap, int count) { return cap < 0 ? 0x7FFFFFFF : std::max(0, cap - count); }
  static int pages_for(paged_lanes const& to, int count) { return (count + to.page() - 1) / to.page(); }

  static int listed(std::span<promoted const> sources, int index) {
    std::int64_t all = 0;
    for (promoted const& each : sources) all += std::ssize(promoted_of(each, index));
    return static_cast<int>(all);
  }

  static void check(std::span<promoted const> sources, paged_lanes const& to, int cap) {
    for (promoted const& each : sources) detail::refuse_other_rows("promote", *each.from, to.entries);
    std::int64_t pages = 0;
    detail::for_each_lane(to.entries.lanes, [&](int, lane this_lane) {  // prefetches all last positions
      __builtin_prefetch(to.entries.lanes.position.row(this_lane) + *to.entries.lanes.count.row(this_lane) - 1);
    });
    detail::for_each_lane(to.entries.lanes, [&](int i, lane this_lane) {
      int const all = listed(sources, i);
      if (all == 0) return;
      int const before = *to.entries.lanes.count.row(this_lane);
      int const count = before + std::min(all, capacity_left(cap, before));
      expects(count <= to.entries.lanes.capacity, "promote", "pages.lanes.capacity", to.entries.lanes.capacity,
              [&] { return detail::spell_lane(this_lane) + " would hold " + std::to_string(count) + " entries"; });
      pages += std::max(0, pages_for(to, count) - *to.num_pages.row(this_lane));
      check_positions(sources, to, i, this_lane);
    });
    expects(pages <= *to.free_pages.count, "promote", "pages", pages,
            [&] { return "the pool has " + std::to_string(*to.free_pages.count) + " left"; });
    for (std::int64_t i = 0; i < pages; ++i) {
      int const page = to.free_pages.free[*to.free_pages.count - 1 - i];
      expects(page != to.free_pages.sentinel && page >= 0 && page < to.entries.where.units, "promote", "pages.free",
              page,
              page == to.free_pages.sentinel ? "it is the sentinel, which is never handed out"
                                             : "the pool has no such page");
    }
  }

  static void check_positions(std::span<promoted const> sources, paged_lanes const& to, int index, lane this_lane) {
    int const count = *to.entries.lanes.count.row(this_lane);
    int last = count > 0 ? to.entries.lanes.position.row(this_lane)[count - 1] : -1;
    for (promoted const& each : sources) {
      std::span<int const> const ordinals = promoted_of(each, index);
      if (ordinals.empty()) continue;
      int const* const position = each.from->lanes.position.row(this_lane);
      expects(position[ordinals.front()] > last, "promote", "position", position[ordinals.front()], [&] {
        return "positions ascend and the last of " + detail::spell_lane(this_lane) + " is " + std::to_string(last);
      });
      last = position[ordinals.back()];
    }
  }

  static void take_pages(std::span<promoted const> sources, paged_lanes const& to, int index, lane this_lane, int cap,
                         promotion_stats& sum) {
    int const all = listed(sources, index);
    if (all == 0) return;
    int const before = *to.entries.lanes.count.row(this_lane);
    int const more = std::min(all, capacity_left(cap, before));
    sum.promoted += more;
    sum.over_cap += all - more;
    for (int& pages = *to.num_pages.row(this_lane); pages < pages_for(to, before + more); ++pages, ++sum.pages) {
      to.table.row(this_lane)[pages] = to.free_pages.free[--*to.free_pages.count];
    }
  }

  /// Copies the rows of the listed entries to those from `first` on. Rows are fetched a few entries ahead.
  static void copy_entries(cache const& from, cache const& to, lane this_lane, std::span<int const> ordinals,
                           int first) {
    detail::entry_places known[entries_ahead];
    auto const fetched = [&](std::size_t i) {
      return fetch_entry(from, to, this_lane, ordinals[i], first + static_cast<int>(i));
    };
    for (std::size_t i = 0; i < std::min(entries_ahead, ordinals.size()); ++i) known[i] = fetched(i);
    for (std::size_t i = 0; i < ordinals.size(); ++i) {
      detail::entry_places& at = known[i % entries_ahead];
      detail::copy_entry(from, to, this_lane, at);
      if (i + entries_ahead < ordinals.size()) at = fetched(i + entries_ahead);
    }
  }

  /// Counts are written when all lanes are done, because prefetching reads the counts of other lanes meanwhile.
  static void append(std::span<promoted const> sources, cache const& to, std::span<recorded_column const> columns,
                     int index, int cap) {
    lane const this_lane = to.lanes.at(index);
    int count = *to.lanes.count.row(this_lane);
    for (promoted const& source : sources) {
      std::span<int const> ordinals = promoted_of(source, index);
      auto const more = std::min<std::int64_t>(std::ssize(ordinals), capacity_left(cap, count));
      ordinals = ordinals.first(static_cast<std::size_t>(more));
      int const* const position = source.from->lanes.position.row(this_lane);
      copy_entries(*source.from, to, this_lane, ordinals, count);
      for (std::size_t i = 0; i < ordinals.size(); ++i) {
        to.lanes.position.row(this_lane)[count + static_cast<int>(i)] = position[ordinals[i]];
      }
      detail::copy_columns(
          source.columns, columns, this_lane, [&](int i) { return ordinals[static_cast<std::size_t>(i)]; }, count,
          static_cast<int>(more));
      count += static_cast<int>(more);
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
