// SPDX-License-Identifier: Apache-2.0
// Device implementation of sort_entries, which restores the order of lanes that overwrite has changed.
#pragma once

#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/cuda/moves/move_rows.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Sorts the entries of all lanes that share a row of positions, one block for each row: it finds the lowest position
/// of the entries that are left and exchanges it with the first of them.
struct sort_kernel {
  kvpolicy::lanes lanes;
  row_owners rows;
  locator where;
  unit_table list;
  few_moved what;
  few_columns known;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = rows.at(block.index());
    if (lanes.order.row(one)->ascends() || !counts_fit(lanes, one)) return;
    int* const position = lanes.position.row(one);
    int const count = *lanes.count.row(one);
    auto* const storage = shared_arena(block).take<collective_storage>(1);
    for (int i = lanes.order.row(one)->begin; i < count; ++i) {
      std::uint64_t lowest = ~std::uint64_t{0};
      for (int e = i + block.thread(); e < count; e += block.threads()) {
        lowest = min_op{}(lowest,
                          std::uint64_t{static_cast<std::uint32_t>(position[e])} << 32 | static_cast<std::uint32_t>(e));
      }
      block.sync();
      lowest = block.reduce(storage, lowest, min_op{});
      auto const from = static_cast<int>(static_cast<std::uint32_t>(lowest));
      if (from == i) continue;
      for (int j = 0; j < rows.sharers(); ++j) exchange(block, rows.sharer(one, j), i, from);
      if (block.thread() == 0) exchange_values(position[i], position[from]);
      block.sync();
    }
    block.sync();
    if (block.thread() != 0) return;
    *lanes.order.row(one) = {};
    for (int j = 0; j < rows.sharers(); ++j) lower_known(block, known, rows.sharer(one, j), 0);
  }

 private:
  template <class T>
  KVPOLICY_HD static void exchange_values(T& a, T& b) {
    T const old = a;
    a = b;
    b = old;
  }

  /// Each byte is exchanged by one thread.
  template <class Block>
  KVPOLICY_HD void exchange(Block& block, lane one, int a, int b) const {
    if (list.units.data != nullptr && block.thread() == 0 && leads_row(list.shares, lanes, one)) {
      exchange_values(list.row(one)[a], list.row(one)[b]);
    }
    for (int i = 0; i < what.count; ++i) {
      moved_rows const& each = what.of[i];
      if (!each.led_by(lanes, one)) continue;
      std::byte* const first = each.row(where, one, a);
      std::byte* const second = each.row(where, one, b);
      for (int at = block.thread(); at < each.columns * each.width; at += block.threads()) {
        std::int64_t const offset = at / each.width * each.step + at % each.width;
        exchange_values(first[offset], second[offset]);
      }
    }
  }
};

}  // namespace detail

/// Takes one launch. It is refused if there are more than eight planes and columns.
template <kernel_backend Backend>
struct implementation<ops::sort_entries_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, cache const& in, by_lane<int> const& list, std::span<recorded_column const> columns) {
    detail::few_moved what;
    int visits = 0;
    auto const visit = [&](detail::few_moved const& some) {
      what = some;
      ++visits;
    };
    detail::moved_list all(visit);
    if (list.data == nullptr) all.add_planes(in);
    all.add_columns(columns);
    all.flush();
    expects(visits <= 1, "sort_entries", "columns", columns.size(), "a device sorts eight planes and columns at most");
    detail::unit_table const slots = detail::table_of(in.where, list);
    detail::row_owners const rows = detail::owners_of(in.lanes.position, in.lanes);
    detail::launch_unless_fault(
        exec, launch_shape{rows.count(), exec.threads().row, detail::collective_bytes()},
        detail::sort_kernel{in.lanes, rows, in.where, slots, what, detail::known_columns(columns)});
  }
};

}  // namespace KVPOLICY_NAMESPACE
