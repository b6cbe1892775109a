// SPDX-License-Identifier: Apache-2.0
// `copy_on_write` gives a slot pages of its own before something writes into pages that it shares.
#pragma once

#include <algorithm>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/lifecycle/slot.hpp>
#include <kvpolicy/ops/copy_rows.hpp>
#include <string>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {
namespace detail {

[[nodiscard]] inline bool has_unit(locator const& where, int unit) { return unit >= 0 && unit < where.units; }
[[nodiscard]] inline auto units_rule(locator const& where) {
  return [units = where.units] { return "the pool has pages 0 to " + std::to_string(units - 1); };
}

/// The pages of a slot, in the order of the rows that it has in a table.
struct slot_pages {
  std::vector<int> of;    ///< all pages of each row
  std::vector<int> used;  ///< for each row how many its longest lane uses
};

template <executor Executor>
[[nodiscard]] slot_pages pages_of_slot(char const* call, Executor& exec, cache const& all, by_lane<int> const& table,
                                       int slot) {
  int const page = all.where.unit_tokens;
  auto const pages = static_cast<std::size_t>((all.lanes.capacity + page - 1) / page);
  std::vector<int> const counts = counts_of(exec, all, slot);
  slot_pages made;
  for_each_own_row(table, all.lanes, slot, [&](lane one) {
    std::vector<int> const row = fetched(exec, table.row(one), pages);
    made.of.insert(made.of.end(), row.begin(), row.end());
    made.used.push_back(0);
  });
  int const heads = table.head == 0 ? 1 : all.lanes.heads;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    lane const one = all.lanes.at(static_cast<int>(i));
    expects(
        counts[i] >= 0 && counts[i] <= all.lanes.capacity, call, "lanes.count",
        [&] { return std::to_string(counts[i]) + " in " + spell_lane_of(all.lanes, {slot, one.layer, one.head}); },
        [&] { return "a lane holds 0 to " + std::to_string(all.lanes.capacity) + " entries, its `capacity`"; });
    int const layer = table.layer == 0 ? 0 : one.layer - all.lanes.layer_begin;
    int& used = made.used[static_cast<std::size_t>(layer * heads + (table.head == 0 ? 0 : one.head))];
    used = std::max(used, (counts[i] + page - 1) / page);
  }
  for (std::size_t i = 0; i < made.of.size(); ++i) {
    bool const is_used = static_cast<int>(i % pages) < made.used[i / pages];
    expects(!is_used || has_unit(all.where, made.of[i]), call, "table", made.of[i], units_rule(all.where));
  }
  return made;
}

/// Refuses a page of `now` that is not the one before, unless it is in the pool and the slot has it once.
inline void check_replaced(char const* call, cache const& all, slot_pages const& before, std::vector<int> const& now) {
  bool const one_of_layers = all.k.layer_stride == 0 && all.k.bases.layer == 0;
  bool const one_of_heads = all.k.head_stride == 0 && all.k.bases.head == 0;
  std::size_t const heads = all.where.table.head == 0 ? 1 : static_cast<std::size_t>(all.lanes.heads);
  std::size_t const width = now.size() / before.used.size();
  struct named {
    std::size_t pool;
    int page;
    int old;  // the page that it replaces, or itself
    bool operator<(named const& other) const { return std::pair(pool, page) < std::pair(other.pool, other.page); }
  };
  std::vector<named> all_named;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (static_cast<int>(i % width) >= before.used[i / width]) continue;
    std::size_t const row = i / width;
    std::size_t const pool = (one_of_layers ? 0 : row / heads * heads) + (one_of_heads ? 0 : row % heads);
    int const old = before.of[i];
    all_named.push_back({pool, old, old});
    if (now[i] != old) all_named.push_back({pool, now[i], old});
  }
  std::sort(all_named.begin(), all_named.end());
  for (std::size_t i = 0; i < all_named.size(); ++i) {
    named const& one = all_named[i];
    if (one.page == one.old) continue;
    auto const same = [&](std::size_t j) {
      return j < all_named.size() && !(one < all_named[j]) && !(all_named[j] < one);
    };
    auto const returned = [&] { return std::to_string(one.page) + " for page " + std::to_string(one.old); };
    expects(has_unit(all.where, one.page), call, "replace", returned, units_rule(all.where));
    expects(!same(i - 1) && !same(i + 1), call, "replace", returned,
            "the slot has this page already: it returns a page that is free");
  }
}

inline void check_copy_on_write(char const* call, cache const& all, by_lane<int> const& table, int slot, int first) {
  check_cache(call, all);
  check_copied(call, all, rows::copy);
  expects(all.lanes.slots == nullptr && all.lanes.sequences == all.lanes.slot_total(), call, "cache.lanes",
          "some slots", "slots are numbered in the cache of all slots");
  check_slot(call, "slot", all, slot);
  check_same_table(call, "table", table, all.where.table);
  expects(all.where.kind == locating::block_table || all.where.kind == locating::slot_map, call, "where",
          "no table of pages", "entries are found through a table that has a row for each slot");
  expects(table.layer != 0 || all.lanes.layers() == all.shape.layers, call, "cache.lanes.layers", all.lanes.layers(),
          [&] {
            return "all " + std::to_string(all.shape.layers) + " share a row of the table: they are copied together";
          });
  expects(first >= 0, call, "first", first, "entries are numbered from 0");
}

}  // namespace detail

/// Gives a slot pages of its own where it shares them with other slots or with a prefix cache: copy on write. Call it
/// before anything writes rows of entry `first` or later: `append` writes in the last page, and `compact` in every page
/// from the first dropped entry on.
///
/// - in: `table` is the block table or the slot map that the locator of `all` reads, as writable memory. The function
///   `replace(page)` is the engine's: it returns the page itself if only this slot has it, or else a free page, after
///   it has taken the reference of this slot from the old one. It is asked once for each page of a row of the table,
///   from that of entry `first` to the last one that a lane of the row uses.
/// - returns: the number of pages that were copied.
/// - cost: reads and writes the rows of these pages once.
/// - throws: `invalid_argument` if the slot is out of range or `table` is another table; if layers share a row of the
///   table and `all` has some of them only; if a page of the slot is outside of the pool; if `replace` returns a page
///   outside of the pool or one that the slot has already; what `replace` throws. Then the table and the rows are as
///   before. What `replace` has done is the engine's: it gives back the pages that it returned in this call, and the
///   slot refers to the old ones again.
template <executor Executor, class Replace>
int copy_on_write(Executor& exec, cache const& all, by_lane<int> const& table, int slot, int first,
                  Replace const& replace) {
  detail::sole_use const in_use("copy_on_write", exec);
  constexpr char const* call = "copy_on_write";
  detail::check_copy_on_write(call, all, table, slot, first);
  detail::slot_pages const old = detail::pages_of_slot(call, exec, all, table, slot);
  std::vector<int> pages = old.of;
  std::size_t const width = pages.size() / old.used.size();
  detail::listed_slots<Executor> const from(exec, all, slot);  // no memory runs out after the engine has been asked
  typename Executor::template buffer<int> staged(exec, pages.size());
  int copied = 0;
  for (std::size_t r = 0; r < old.used.size(); ++r) {
    for (int p = first / all.where.unit_tokens; p < old.used[r]; ++p) {
      int& mine = pages[r * width + static_cast<std::size_t>(p)];
      int const now = replace(mine);
      copied += now != mine ? 1 : 0;
      mine = now;
    }
  }
  if (copied == 0) return 0;
  detail::check_replaced(call, all, old, pages);
  exec.copy(reinterpret_cast<std::byte*>(staged.data()), reinterpret_cast<std::byte const*>(pages.data()),
            pages.size() * sizeof(int));
  cache to = from.view();
  auto const stride = static_cast<std::int64_t>(width);
  int const heads = table.head == 0 ? 1 : all.lanes.heads;
  to.where.table = {staged.data() - (table.layer == 0 ? 0 : all.lanes.layer_begin * heads * stride), 0,
                    table.layer == 0 ? 0 : heads * stride, table.head == 0 ? 0 : stride};
  ops::copy_rows(exec, from.view(), to);
  std::size_t at = 0;
  detail::for_each_own_row(table, all.lanes, slot, [&](lane one) {
    exec.copy(reinterpret_cast<std::byte*>(table.row(one)), reinterpret_cast<std::byte const*>(&pages[at]),
              width * sizeof(int));
    at += width;
  });
  return copied;
}

}  // namespace KVPOLICY_NAMESPACE
