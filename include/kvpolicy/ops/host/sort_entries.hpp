// SPDX-License-Identifier: Apache-2.0
// The host implementation of sort_entries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/host/copy_entries.hpp>
#include <kvpolicy/ops/host/replace_listed.hpp>
#include <kvpolicy/ops/host/unit_marks.hpp>
#include <kvpolicy/ops/lists.hpp>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Sorts the rows of K and V of a lane, one cycle after another, by way of the place behind the last entry.
inline void sort_places(cache const& in, lane one, std::vector<int>& from) {
  int const spare = static_cast<int>(from.size());
  for (int i = 0; i < spare; ++i) {
    if (from[static_cast<std::size_t>(i)] == i) continue;
    copy_entry(in, in, one, i, spare);
    int to = i;
    for (int next = from[static_cast<std::size_t>(to)]; next != i; next = from[static_cast<std::size_t>(to)]) {
      copy_entry(in, in, one, next, to);
      from[static_cast<std::size_t>(to)] = to;
      to = next;
    }
    copy_entry(in, in, one, spare, to);
    from[static_cast<std::size_t>(to)] = to;
  }
}

}  // namespace detail

template <>
struct implementation<ops::sort_entries_t, host> {
  static void run(host_executor&, cache const& in, by_lane<int> const& list, std::span<recorded_column const> columns) {
    lanes const& batch = in.lanes;
    buffers memory(static_cast<std::size_t>(batch.capacity), columns);
    auto const each_unsorted = [&](auto const& visit) {
      for (int i = 0; i < batch.size(); ++i) {
        if (!batch.order.row(batch.at(i))->ascends()) visit(batch.at(i));
      }
    };
    bool const shared = detail::share_positions(batch);  // then positions are read until all entries have moved
    auto const sort_positions = [&](lane one) {
      memory.sort_row(batch.position.row(one), sizeof(int));
      *batch.order.row(one) = {};
    };
    each_unsorted([&](lane one) {
      memory.sort(batch.position.row(one), *batch.count.row(one));
      if (list.data == nullptr) {
        memory.cycles = memory.from;
        detail::sort_places(in, one, memory.cycles);
      } else if (detail::leads_row(detail::rows_of(in.where, list), batch, one)) {
        memory.sort_row(detail::writable_list(list, in.where, one), sizeof(int));
      }
      for (recorded_column const& each : columns) {
        if (each.about.extent != column_extent::lane_entry || each.about.rule != on_move::permute) continue;
        memory.sort_row(each.rows.row(one), static_cast<std::size_t>(each.about.bytes));
      }
      detail::lower_known(columns, one, 0);
      if (!shared) sort_positions(one);
    });
    each_unsorted([&](lane one) {
      if (!detail::leads_row(batch.position, batch, one)) return;
      memory.sort(batch.position.row(one), *batch.count.row(one));
      sort_positions(one);
    });
  }

 private:
  /// Memory for the longest lane, so that nothing is allocated after the first change.
  struct buffers {
    buffers(std::size_t bound, std::span<recorded_column const> columns) {
      std::size_t widest = sizeof(int);
      for (recorded_column const& each : columns) widest = std::max(widest, static_cast<std::size_t>(each.about.bytes));
      keys.reserve(bound);
      from.reserve(bound);
      cycles.reserve(bound);
      copy.resize(bound * widest);
    }

    /// Finds which entry comes where: sorts positions and ordinals as one number.
    void sort(int const* position, int count) {
      keys.clear();
      from.clear();
      for (int e = 0; e < count; ++e) {
        keys.push_back(static_cast<std::uint64_t>(position[e]) << 32 | static_cast<std::uint32_t>(e));
      }
      std::sort(keys.begin(), keys.end());
      for (std::uint64_t const key : keys) from.push_back(static_cast<int>(key & 0xFFFFFFFFu));
    }

    /// Element i of a row becomes that of entry from[i].
    void sort_row(void* row, std::size_t width) {
      std::memcpy(copy.data(), row, width * from.size());
      auto* to = static_cast<std::byte*>(row);
      if (width == sizeof(int)) {
        for (int const e : from)
          std::memcpy(std::exchange(to, to + 4), copy.data() + std::size_t{4} * static_cast<std::size_t>(e), 4);
      } else {
        for (int const e : from) {
          std::memcpy(std::exchange(to, to + width), copy.data() + static_cast<std::size_t>(e) * width, width);
        }
      }
    }

    std::vector<std::uint64_t> keys;
    std::vector<int> from, cycles;
    std::vector<std::byte> copy;
  };
};

}  // namespace KVPOLICY_NAMESPACE
