// The host implementation of replace_listed, which moves the newest entry of a lane to the place of the dropped one.
#pragma once

#include <cstring>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/host/copy_entries.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/lists.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// True if lanes of a sequence share rows of positions.
inline bool share_positions(lanes const& batch) {
  return (batch.position.layer == 0 && batch.layers() > 1) || (batch.position.head == 0 && batch.heads > 1);
}

}  // namespace detail

template <>
struct implementation<ops::replace_listed_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& list,
                  std::span<recorded_column const> columns) {
    lanes const& batch = in.lanes;
    std::int64_t const bytes = list.data == nullptr ? in.k.dims * 4LL * bytes_of(in.k.element) : 256;
    auto const each_drop = [&](auto const& visit) {
      exec.for_each_range(keep.lanes.size(), bytes, [&](int begin, int end, int) {
        auto const prepare = [&](int i, lane one) { fetch(keep, in, list, columns, i, one); };
        detail::for_each_lane(keep.lanes, begin, end, prepare, [&](int i, lane one) {
          for (int const ordinal : keep.listed(segment_of(keep.lanes, keep.decides, i))) visit(one, ordinal);
        });
      });
    };
    bool const shared = detail::share_positions(batch);  // then positions are read until all entries have moved
    each_drop([&](lane one, int ordinal) {
      lane_replacement const how = replacement(batch, one, ordinal);
      move_entry(in, list, columns, one, ordinal, how);
      if (!shared) note(batch, one, ordinal, how);
    });
    if (shared) {
      each_drop([&](lane one, int ordinal) { note(batch, one, ordinal, replacement(batch, one, ordinal)); });
      each_drop([&](lane one, int) { lower_count(batch, one); });
    }
  }

 private:
  /// Prefetches the numbers of the entry that a lane drops: they are all over the lane's memory.
  [[gnu::always_inline]] static void fetch(keep_set const& keep, cache const& in, by_lane<int> const& list,
                                           std::span<recorded_column const> columns, int i, lane one) {
    for (int const ordinal : keep.listed(segment_of(keep.lanes, keep.decides, i))) {
      __builtin_prefetch(in.lanes.position.row(one) + ordinal, 1, 2);
      if (list.data != nullptr) __builtin_prefetch(detail::list_row(list, in.where, one) + ordinal, 1, 2);
      for (recorded_column const& each : columns) {
        if (each.about.one != per::lane_entry) continue;
        __builtin_prefetch(each.rows.row(one) + std::int64_t{ordinal} * each.about.bytes, 1, 2);
      }
    }
  }

  static lane_replacement replacement(lanes const& batch, lane one, int ordinal) {
    return replacement_of(*batch.order.row(one), batch.position.row(one), batch.committed(one), ordinal);
  }

  /// Calls copy(from, to) for the entries that move, in an order in which none is overwritten before it was copied.
  template <class Copy>
  static void each_move(lane_replacement const& how, int ordinal, int count, Copy const& copy) {
    if (how.source != ordinal) copy(how.source, ordinal);
    for (int e = how.source + 1; e < count; ++e) copy(e, e - 1);
  }

  static void move_entry(cache const& in, by_lane<int> const& list, std::span<recorded_column const> columns, lane one,
                         int ordinal, lane_replacement const& how) {
    int const count = *in.lanes.count.row(one);
    if (list.data == nullptr) {
      each_move(how, ordinal, count, [&](int from, int to) { detail::copy_entry(in, in, one, from, to); });
    } else if (detail::owns_row(detail::rows_of(in.where, list), in.lanes, one)) {
      int* const slots = detail::list_row(list, in.where, one);
      int const gone = slots[ordinal];
      each_move(how, ordinal, count, [&](int from, int to) { slots[to] = slots[from]; });
      slots[count - 1] = gone;
    }
    for (recorded_column const& each : columns) {
      if (each.about.one != per::lane_entry || each.about.rule != on_move::permute) continue;
      auto const width = static_cast<std::size_t>(each.about.bytes);
      std::byte* const row = each.rows.row(one);
      each_move(how, ordinal, count, [&](int from, int to) {
        std::memcpy(row + static_cast<std::size_t>(to) * width, row + static_cast<std::size_t>(from) * width, width);
      });
    }
    detail::lower_known(columns, one, ordinal);
  }

  /// Updates positions and the order, and the count unless lanes share positions.
  static void note(lanes const& batch, lane one, int ordinal, lane_replacement const& how) {
    if (!detail::owns_row(batch.position, batch, one)) return;
    int* const position = batch.position.row(one);
    each_move(how, ordinal, *batch.count.row(one), [&](int from, int to) { position[to] = position[from]; });
    *batch.order.row(one) = how.after;
    if (!detail::share_positions(batch)) lower_count(batch, one);
  }

  static void lower_count(lanes const& batch, lane one) {
    if (detail::owns_row(batch.count, batch, one)) --*batch.count.row(one);
  }
};

}  // namespace KVPOLICY_NAMESPACE
