// SPDX-License-Identifier: Apache-2.0
// The host implementation of replace_listed, which moves the newest entry of a lane to the place of the dropped one.
#pragma once

#include <cstring>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/host/copy_entries.hpp>
#include <kvpolicy/ops/host/unit_marks.hpp>
#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// True if lanes of a sequence share rows of a table.
template <class T>
bool shares_rows(by_lane<T> const& table, lanes const& batch) {
  return (table.layer == 0 && batch.layers() > 1) || (table.head == 0 && batch.heads > 1);
}
/// True if lanes of a sequence share rows of positions.
inline bool share_positions(lanes const& batch) { return shares_rows(batch.position, batch); }

/// The number of heads, from a lane on, whose rows of this table are not those of an earlier lane.
template <class T>
int owned_heads(by_lane<T> const& table, lanes const& batch, lane first, int heads) {
  if (!leads_row(table, batch, first)) return 0;
  return table.head != 0 ? heads : 1;
}

/// Some heads of a layer that drop an entry each.
struct dropping_heads {
  static constexpr int most = 16;

  /// The numbers of one of them are at its index, and `head` counts from that of the first lane.
  int size = 0;
  int head[most];
  int ordinal[most];
  int count[most];
  lane_replacement how[most];  ///< once `find_replacements` was called

  dropping_heads(keep_set const& keep, lanes const& batch, int i, lane first, int heads) {
    head_rows<int> const counts(batch.count, first);
    for (int h = 0; h < heads; ++h) {
      std::span<int const> const listed = keep.listed(segment_of(keep.lanes, keep.decides, i + h));
      if (listed.empty()) continue;
      head[size] = h;
      ordinal[size] = listed.front();
      count[size] = *counts[h];
      ++size;
    }
  }

  void find_replacements(lanes const& batch, lane first) {
    head_rows<int> const positions(batch.position, first);
    head_rows<lane_order> const orders(batch.order, first);
    int const drafts = batch.in_flight != nullptr ? *batch.drafts(first.sequence) : 0;
    for (int d = 0; d < size; ++d) {
      how[d] = replacement_of(*orders[head[d]], positions[head[d]], count[d] - drafts, ordinal[d]);
    }
  }

  /// Moves the entries of the d-th head by copy(from, to), in an order in which none is overwritten before it was
  /// copied.
  template <class Copy>
  [[gnu::always_inline]] void move(int d, Copy const& copy) const {
    if (how[d].source != ordinal[d]) copy(how[d].source, ordinal[d]);
    for (int e = how[d].source + 1; e < count[d]; ++e) copy(e, e - 1);
  }
};

}  // namespace detail

template <>
struct implementation<ops::replace_listed_t, host> {
  static void run(host_executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& list,
                  std::span<recorded_column const> columns) {
    lanes const& batch = in.lanes;
    std::int64_t const bytes = list.data == nullptr ? in.k.channels * 4LL * bytes_of(in.k.element) : 256;
    auto const each_part = [&](auto const& visit) {
      exec.for_each_range(keep.lanes.size(), bytes, [&](int begin, int end, int) {
        detail::for_each_heads(keep.lanes, begin, end, detail::dropping_heads::most, visit);
      });
    };
    // Positions and counts that lanes share are read until all entries have moved.
    bool const shared = detail::share_positions(batch) || detail::shares_rows(batch.count, batch);
    each_part([&](int i, lane first, int heads) {
      fetch(keep, in, list, columns, i + heads, after(first, heads, batch));
      replace(keep, in, list, columns, i, first, heads, !shared);
    });
    if (!shared) return;
    each_part([&](int i, lane first, int heads) {
      detail::dropping_heads all(keep, batch, i, first, heads);
      all.find_replacements(batch, first);
      note(batch, first, all);
    });
    each_part([&](int i, lane first, int heads) { lower_counts(batch, first, {keep, batch, i, first, heads}); });
  }

 private:
  static lane head_of(lane first, int head) { return {first.sequence, first.layer, first.head + head}; }
  /// The lane after some heads of a layer.
  static lane after(lane first, int heads, lanes const& batch) { return batch.after(head_of(first, heads - 1)); }

  /// Replaces the entries of some heads of a layer. Positions, orders and counts change only if `whole`. All that it
  /// calls is short, and is inlined.
  [[gnu::flatten]] static void replace(keep_set const& keep, cache const& in, by_lane<int> const& list,
                                       std::span<recorded_column const> columns, int i, lane const& first, int heads,
                                       bool whole) {
    detail::dropping_heads all(keep, in.lanes, i, first, heads);
    all.find_replacements(in.lanes, first);
    if (list.data == nullptr) {
      copy_rows(in, first, all);
    } else {
      change_lists(in, list, first, all);
    }
    move_numbers(columns, first, all);
    if (!whole) return;
    note(in.lanes, first, all);
    lower_counts(in.lanes, first, all);
  }

  /// Prefetches the numbers of the entries that lane i and the later heads of its layer drop, which are all over
  /// memory, and of those that take their places.
  [[gnu::always_inline]] static void fetch(keep_set const& keep, cache const& in, by_lane<int> const& list,
                                           std::span<recorded_column const> columns, int i, lane first) {
    int const heads = std::min({detail::dropping_heads::most, in.lanes.heads - first.head, keep.lanes.size() - i});
    if (heads <= 0) return;
    detail::head_rows<int> const positions(in.lanes.position, first);
    detail::head_rows<int> const counts(in.lanes.count, first);
    auto const each = [&](auto const& visit) {
      for (int h = 0; h < heads; ++h) {
        for (int const ordinal : keep.listed(segment_of(keep.lanes, keep.decides, i + h))) {
          visit(h, ordinal);
          visit(h, *counts[h] - 1);
        }
      }
    };
    each([&](int h, int ordinal) { __builtin_prefetch(positions[h] + ordinal, 1, 3); });
    for (recorded_column const& column : columns) {
      if (column.about.extent != column_extent::lane_entry) continue;
      detail::head_rows<std::byte> const rows(column.rows, first);
      each([&](int h, int ordinal) { __builtin_prefetch(rows[h] + std::int64_t{ordinal} * column.about.bytes, 1, 3); });
    }
    if (list.data == nullptr || in.where.begin.data != nullptr) return;
    detail::head_rows<int> const lists(list, first);
    each([&](int h, int ordinal) { __builtin_prefetch(lists[h] + ordinal, 1, 3); });
  }

  [[gnu::noinline]] static void copy_rows(cache const& in, lane first, detail::dropping_heads const& all) {
    for (int d = 0; d < all.size; ++d) {
      lane const one = head_of(first, all.head[d]);
      all.move(d, [&](int from, int to) { detail::copy_entry(in, in, one, from, to); });
    }
  }

  static void change_lists(cache const& in, by_lane<int> const& list, lane first, detail::dropping_heads const& all) {
    int const owned =
        detail::owned_heads(detail::rows_of(in.where, list), in.lanes, first, detail::dropping_heads::most);
    detail::head_rows<int> const lists(list, first);
    detail::head_rows<int const> const begins(in.where.begin, first);
    bool const begun = in.where.begin.data != nullptr;
    for (int d = 0; d < all.size && all.head[d] < owned; ++d) {
      int* const slots = lists[all.head[d]] + (begun ? *begins[all.head[d]] : 0);
      int const gone = slots[all.ordinal[d]];
      all.move(d, [&](int from, int to) { slots[to] = slots[from]; });
      slots[all.count[d] - 1] = gone;
    }
  }

  /// Moves the recorded numbers of entries.
  static void move_numbers(std::span<recorded_column const> columns, lane first, detail::dropping_heads const& all) {
    for (recorded_column const& each : columns) {
      if (each.about.extent != column_extent::lane_entry || each.about.rule != on_move::permute) continue;
      detail::head_rows<std::byte> const rows(each.rows, first);
      auto const width = static_cast<std::size_t>(each.about.bytes);
      for (int d = 0; d < all.size; ++d) {
        std::byte* const row = rows[all.head[d]];
        if (width == sizeof(float)) {
          auto* const numbers = reinterpret_cast<float*>(row);
          all.move(d, [&](int from, int to) { numbers[to] = numbers[from]; });
        } else {
          all.move(d, [&](int from, int to) {
            std::memcpy(row + static_cast<std::size_t>(to) * width, row + static_cast<std::size_t>(from) * width,
                        width);
          });
        }
      }
    }
    for (int d = 0; d < all.size; ++d) detail::lower_known(columns, head_of(first, all.head[d]), all.ordinal[d]);
  }

  /// Updates positions and orders.
  static void note(lanes const& batch, lane first, detail::dropping_heads const& all) {
    detail::head_rows<int> const positions(batch.position, first);
    detail::head_rows<lane_order> const orders(batch.order, first);
    int const owned = detail::owned_heads(batch.position, batch, first, detail::dropping_heads::most);
    for (int d = 0; d < all.size && all.head[d] < owned; ++d) {
      int* const position = positions[all.head[d]];
      all.move(d, [&](int from, int to) { position[to] = position[from]; });
      *orders[all.head[d]] = all.how[d].after;
    }
  }

  static void lower_counts(lanes const& batch, lane first, detail::dropping_heads const& all) {
    detail::head_rows<int> const counts(batch.count, first);
    int const owned = detail::owned_heads(batch.count, batch, first, detail::dropping_heads::most);
    for (int d = 0; d < all.size && all.head[d] < owned; ++d) --*counts[all.head[d]];
  }
};

}  // namespace KVPOLICY_NAMESPACE
