// SPDX-License-Identifier: Apache-2.0
// Device implementations of the verbs that advance a window: its oldest entries leave, and the last ones of a chunk
// enter.
#pragma once

#include <kvpolicy/ops/cuda/admission/promotion_rows.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// How entries leave a window.
template <int Most = few_columns::most>
struct window_drop {
  by_lane<int> oldest;
  int rows;  ///< rows of the ring
  a_few<recorded_column, Most> columns;
  int slid;  ///< below 0: columns do not move, and only those of on_move::recompute change
  epochs_of_parts epochs;

  /// Moves a lane's recorded columns to the beginning of their rows and raises its epochs, by `width` neighbouring
  /// threads of a warp. Those of a sequence's first lane move its positions up. All threads of the warp call this,
  /// those without a lane with no entry.
  template <class Block>
  KVPOLICY_HD void move(Block& block, lanes const& window, int width, lane one, int gone, int left) const {
    bool const is_first = (lane_id(block) & (width - 1)) == 0;
    if (is_first && left >= 0) lower_known(block, columns, one, 0);
    for (int i = 0; i < columns.count && slid >= 0; ++i) {
      recorded_column const& each = columns.of[i];
      if (each.about.extent != column_extent::lane_entry) continue;
      move(block, width, each.rows.row(one), each.about.bytes, gone, gone + slid > 0 ? left : 0);
    }
    int* const position = window.position.row(one);
    move_down(block, width, position, position + gone, leads(window, one) && gone > 0 ? left : 0);
    if (!is_first || gone == 0 || one.head != 0) return;
    if (epochs.window.data != nullptr) ++*epochs.window.row(one);
    if (epochs.pages.data != nullptr) ++*epochs.pages.row(one);
  }

  /// Lowers a sequence's count and advances its cursor, by one thread, once nobody reads them any more.
  KVPOLICY_HD void advance(lanes const& window, int sequence, int gone) const {
    lane const first{sequence, window.layer_begin, 0};
    *window.count.row(first) -= gone;
    int* const cursor = oldest.row(first);
    *cursor = (*cursor + gone) % rows;
  }

  [[nodiscard]] KVPOLICY_HD static bool leads(lanes const& window, lane one) {
    return one.layer == window.layer_begin && one.head == 0;
  }

 private:
  template <class Block>
  KVPOLICY_HD void move(Block& block, int width, std::byte* row, int bytes, int gone, int left) const {
    std::byte* const to = row - std::int64_t{slid} * bytes;
    std::byte const* const from = row + std::int64_t{gone} * bytes;
    constexpr int word = static_cast<int>(sizeof(unsigned));
    bool const apart = (reinterpret_cast<std::uintptr_t>(row) | static_cast<unsigned>(bytes)) % sizeof(unsigned) != 0;
    if (block.ballot(apart) == 0) {
      auto const* const words = reinterpret_cast<unsigned const*>(from);
      move_down(block, width, reinterpret_cast<unsigned*>(to), words, left * (bytes / word));
    } else {
      move_down(block, width, to, from, left * bytes);
    }
  }
};

/// One warp for each lane. Every warp reads its sequence's count, so the last block lowers them.
struct drop_oldest_kernel {
  kvpolicy::lanes lanes;
  window_drop<> drop;
  int const* entries;
  int* ticket;

  [[nodiscard]] static constexpr std::size_t shared_bytes() { return shared_arena::bytes_of_piece<int>(1); }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const index = block.index() * (block.threads() / warp_size) + warp_id(block);
    if (index < lanes.size()) {
      lane const one = lanes.at(index);
      int const gone = entries[one.sequence];
      drop.move(block, lanes, warp_size, one, gone, *lanes.count.row(one) - gone);
    }
    if (!last_block(block, ticket, shared_arena(block).take<int>(1))) return;
    for (int i = block.thread(); i < lanes.sequences; i += block.threads()) {
      drop.advance(lanes, lanes.sequence_begin + i, entries[lanes.sequence_begin + i]);
    }
  }
};

/// Writes positions and the count of the entries that entered, one block for each sequence.
struct count_entered_kernel {
  by_lane<int> from_count;
  by_lane<int> from_position;
  kvpolicy::lanes lanes;
  int const* first;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one{lanes.sequence_begin + block.index(), lanes.layer_begin, 0};
    int const count = *lanes.count.row(one);
    int const begin = first[one.sequence];
    int const more = *from_count.row(one) - begin;
    for (int e = block.thread(); e < more; e += block.threads()) {
      lanes.position.row(one)[count + e] = from_position.row(one)[begin + e];
    }
    block.sync();
    if (block.thread() == 0) *lanes.count.row(one) = count + more;
  }
};

/// Checks that positions of a chunk ascend and follow those of the window, one block for each sequence.
struct refuse_chunk_kernel {
  by_lane<int> from_count;
  by_lane<int> from_position;
  kvpolicy::lanes lanes;
  device_error faults;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one{lanes.sequence_begin + block.index(), lanes.layer_begin, 0};
    int const committed = *lanes.count.row(one);
    int const last = committed > 0 ? lanes.position.row(one)[committed - 1] : -1;
    int const count = *from_count.row(one);
    int const* const position = from_position.row(one);
    for (int e = block.thread(); e < count; e += block.threads()) {
      int const before = e > 0 ? position[e - 1] : last;
      if (position[e] <= before) report_fault(block, faults, fault::window_position, one.sequence, position[e]);
    }
  }
};

}  // namespace detail

/// Takes one launch.
template <kernel_backend Backend>
struct implementation<ops::drop_oldest_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, cache const& window, by_lane<int> const& oldest,
                  std::span<recorded_column const> columns, int const* entries, int slid,
                  epochs_of_parts const& epochs = {}) {
    detail::drop_oldest_kernel const kernel{
        window.lanes,
        {oldest, window.where.unit_tokens, detail::all_columns("promote", columns), slid, epochs},
        entries,
        exec.tickets()};
    auto const threads = exec.threads().lane;
    int const warps = threads / detail::warp_size;
    detail::launch_unless_fault(
        exec, launch_shape{(window.lanes.size() + warps - 1) / warps, threads, kernel.shared_bytes()}, kernel);
  }
};

template <kernel_backend Backend>
struct implementation<ops::enter_rows_t, Backend> {
  /// Throws if the rows of the chunk differ from the window's, and records a fault if its positions do not follow,
  /// before anything is written.
  template <class Executor>
  static void refuse(Executor& exec, cache const& from, cache const& window) {
    detail::refuse_other_rows("ingest", from, window);
    exec.launch(launch_shape{window.lanes.sequences, exec.threads().entry, 0},
                detail::refuse_chunk_kernel{from.lanes.count, from.lanes.position, window.lanes, exec.faults()});
  }

  template <class Executor>
  static void run(Executor& exec, cache const& from, std::span<recorded_column const> from_columns, cache const& window,
                  std::span<recorded_column const> columns, int const* first) {
    lanes const& batch = window.lanes;
    detail::launch_copies(exec, {from.lanes, from.where, window.where, detail::planes_between("ingest", from, window),
                                 detail::moved_with("ingest", columns, from_columns), first, batch.count});
    detail::launch_unless_fault(exec, launch_shape{batch.sequences, exec.threads().entry, 0},
                                detail::count_entered_kernel{from.lanes.count, from.lanes.position, batch, first});
  }
};

}  // namespace KVPOLICY_NAMESPACE
