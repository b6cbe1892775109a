// Host implementations of the verbs that take entries from one cache into another.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/host/copy_entries.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/lists.hpp>
#include <kvpolicy/ops/host/window_rows.hpp>  // IWYU pragma: export
#include <string>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::append_rows_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, std::span<promoted const> sources, paged_lanes const& to,
                  std::span<held_column const> columns, int cap, promotion_tally* told) {
    check(sources, to, cap);
    lanes const& who = to.entries.who;
    promotion_tally sum;
    detail::for_each_lane(who, [&](int i, lane one) { take_pages(sources, to, i, one, cap, sum); });
    exec.for_each(sum.promoted > 0 ? who.size() : 0, [&](int i, int) {
      int const next = i + lanes_ahead;
      if (next < who.size()) fetch(sources.front(), to.entries, columns, next, cap);
      append(sources, to.entries, columns, i, cap);
    });
    detail::for_each_lane(who, [&](int i, lane one) {
      int& count = *who.count.row(one);
      count += std::min(listed(sources, i), room_under(cap, count));
    });
    if (told != nullptr) *told = sum;
  }

 private:
  static constexpr int lanes_ahead = 6;

  /// A lane's first promoted entry into the cache: most often it is the only one, and nothing else knows where it is.
  [[gnu::always_inline]] static inline void fetch(promoted const& source, cache const& to,
                                                  std::span<held_column const> columns, int index, int cap) {
    lane const who = to.who.at(index);
    int const count = *to.who.count.row(who);
    if (going(source, index).empty() || room_under(cap, count) == 0) return;
    place const here = source.from->where.at(who, going(source, index).front());
    place const there = to.where.at(who, count);
    detail::fetch_row(source.from->k, source.from->k.row(who.layer, here, who.head));
    detail::fetch_row(source.from->v, source.from->v.row(who.layer, here, who.head));
    detail::fetch_row(to.k, to.k.row(who.layer, there, who.head));
    detail::fetch_row(to.v, to.v.row(who.layer, there, who.head));
    __builtin_prefetch(to.who.position.row(who) + count, 1);
    for (held_column const& each : columns) {
      if (each.about.one != per::lane_entry) continue;
      __builtin_prefetch(each.rows.row(who) + std::int64_t{count} * each.about.bytes, 1);
    }
  }

  /// The listed ordinals of a lane that are to go.
  static std::span<int const> going(promoted const& source, int index) {
    std::span<int const> const all = source.keep->listed(index);
    if (source.below == nullptr) return all;
    lanes const& who = source.keep->who;
    auto const end = std::lower_bound(all.begin(), all.end(), source.below[index / (who.layers() * who.heads)]);
    return all.first(static_cast<std::size_t>(end - all.begin()));
  }
  static int room_under(int cap, int count) { return cap < 0 ? 0x7FFFFFFF : std::max(0, cap - count); }
  static int pages_for(paged_lanes const& to, int count) { return (count + to.page() - 1) / to.page(); }

  static int listed(std::span<promoted const> sources, int index) {
    std::int64_t all = 0;
    for (promoted const& each : sources) all += std::ssize(going(each, index));
    return static_cast<int>(all);
  }

  static void check(std::span<promoted const> sources, paged_lanes const& to, int cap) {
    for (promoted const& each : sources) detail::refuse_other_rows("promote", *each.from, to.entries);
    std::int64_t pages = 0;
    detail::for_each_lane(to.entries.who, [&](int, lane who) {  // the last positions, from memory all at once
      __builtin_prefetch(to.entries.who.position.row(who) + *to.entries.who.count.row(who) - 1);
    });
    detail::for_each_lane(to.entries.who, [&](int i, lane who) {
      int const all = listed(sources, i);
      if (all == 0) return;
      int const before = *to.entries.who.count.row(who);
      int const count = before + std::min(all, room_under(cap, before));
      expects(count <= to.entries.who.bound, "promote", "global.who.bound", to.entries.who.bound,
              [&] { return detail::spell_lane(who) + " would hold " + std::to_string(count) + " entries"; });
      pages += std::max(0, pages_for(to, count) - *to.held.row(who));
      check_positions(sources, to, i, who);
    });
    expects(pages <= *to.pages.count, "promote", "pages", pages,
            [&] { return "the pool has " + std::to_string(*to.pages.count) + " left"; });
    for (std::int64_t i = 0; i < pages; ++i) {
      int const page = to.pages.free[*to.pages.count - 1 - i];
      expects(
          page != to.pages.sentinel && page >= 0 && page < to.entries.where.units, "promote", "pages.free", page,
          page == to.pages.sentinel ? "it is the sentinel, which is never handed out" : "the pool has no such page");
    }
  }

  static void check_positions(std::span<promoted const> sources, paged_lanes const& to, int index, lane who) {
    int const count = *to.entries.who.count.row(who);
    int last = count > 0 ? to.entries.who.position.row(who)[count - 1] : -1;
    for (promoted const& each : sources) {
      std::span<int const> const ordinals = going(each, index);
      if (ordinals.empty()) continue;
      int const* const position = each.from->who.position.row(who);
      expects(position[ordinals.front()] > last, "promote", "position", position[ordinals.front()], [&] {
        return "positions ascend and the last of " + detail::spell_lane(who) + " is " + std::to_string(last);
      });
      last = position[ordinals.back()];
    }
  }

  static void take_pages(std::span<promoted const> sources, paged_lanes const& to, int index, lane who, int cap,
                         promotion_tally& sum) {
    int const all = listed(sources, index);
    if (all == 0) return;
    int const before = *to.entries.who.count.row(who);
    int const more = std::min(all, room_under(cap, before));
    sum.promoted += more;
    sum.over_cap += all - more;
    for (int& held = *to.held.row(who); held < pages_for(to, before + more); ++held, ++sum.pages) {
      to.table.row(who)[held] = to.pages.free[--*to.pages.count];
    }
  }

  /// Counts are written when all lanes are done: another lane's are asked meanwhile, for what to fetch.
  static void append(std::span<promoted const> sources, cache const& to, std::span<held_column const> columns,
                     int index, int cap) {
    lane const who = to.who.at(index);
    int count = *to.who.count.row(who);
    for (promoted const& source : sources) {
      std::span<int const> ordinals = going(source, index);
      auto const more = std::min<std::int64_t>(std::ssize(ordinals), room_under(cap, count));
      ordinals = ordinals.first(static_cast<std::size_t>(more));
      int const* const position = source.from->who.position.row(who);
      int at = count;
      for (int const ordinal : ordinals) {
        detail::copy_entry(*source.from, to, who, ordinal, at);
        to.who.position.row(who)[at++] = position[ordinal];
      }
      detail::copy_columns(
          source.columns, columns, who, [&](int i) { return ordinals[static_cast<std::size_t>(i)]; }, count,
          static_cast<int>(more));
      count = at;
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
