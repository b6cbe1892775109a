// The host implementation of sort_entries.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/host/copy_entries.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <numeric>
#include <vector>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Sorts rows of elements of `width` bytes: element i becomes that of entry from[i].
inline void sort_row(std::byte* row, std::size_t width, std::vector<int> const& from, std::vector<std::byte>& copy) {
  copy.assign(row, row + width * from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::memcpy(row + i * width, copy.data() + static_cast<std::size_t>(from[i]) * width, width);
  }
}

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
  static constexpr bool provided = true;

  static void run(host_executor&, cache const& in, by_lane<int> const& list, std::span<recorded_column const> columns) {
    lanes const& batch = in.lanes;
    auto const most = static_cast<std::size_t>(batch.bound);
    std::size_t widest = sizeof(int);
    for (recorded_column const& each : columns) widest = std::max(widest, static_cast<std::size_t>(each.about.bytes));
    std::vector<int> from;
    std::vector<int> sorted;
    std::vector<std::byte> copy;
    from.reserve(most);
    sorted.reserve(most);
    copy.reserve(most * widest);
    auto const out_of_order = [&](lane one) { return !batch.order.row(one)->ascends(); };
    for (int i = 0; i < batch.size(); ++i) {
      lane const one = batch.at(i);
      if (!out_of_order(one)) continue;
      int const* const position = batch.position.row(one);
      from.resize(static_cast<std::size_t>(*batch.count.row(one)));
      std::iota(from.begin(), from.end(), 0);
      std::sort(from.begin(), from.end(), [&](int a, int b) { return position[a] < position[b]; });
      if (list.data == nullptr) {
        sorted = from;
        detail::sort_places(in, one, sorted);
      } else if (detail::owns_row(detail::rows_of(in.where, list), batch, one)) {
        detail::sort_row(reinterpret_cast<std::byte*>(detail::list_row(list, in.where, one)), sizeof(int), from, copy);
      }
      for (recorded_column const& each : columns) {
        if (each.about.one != per::lane_entry || each.about.rule != on_move::permute) continue;
        detail::sort_row(each.rows.row(one), static_cast<std::size_t>(each.about.bytes), from, copy);
      }
      detail::lower_known(columns, one, 0);
    }
    for (int i = 0; i < batch.size(); ++i) {
      lane const one = batch.at(i);
      if (!out_of_order(one) || !detail::owns_row(batch.position, batch, one)) continue;
      int* const position = batch.position.row(one);
      std::sort(position, position + *batch.count.row(one));
      *batch.order.row(one) = {};
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
