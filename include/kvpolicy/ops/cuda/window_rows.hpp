// Device implementations of what a window does beside promotion: its oldest leave, a chunk's last enter.
#pragma once

#include <kvpolicy/ops/cuda/promotion_rows.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// A block a lane: what is recorded moves to the beginning of its rows.
struct move_home_kernel {
  lanes who;
  few_columns columns;
  int const* entries;
  int slid;  ///< below 0: nothing moves, only what is known shrinks

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = who.at(block.index());
    if (block.thread() == 0) lower_known(block, columns, one, 0);
    if (slid < 0) return;
    int const gone = entries[one.sequence];
    int const left = *who.count.row(one) - gone;
    if (gone + slid == 0) return;
    for (int i = 0; i < columns.count; ++i) {
      held_column const& each = columns.of[i];
      if (each.about.one == per::lane_entry) move(block, each.rows.row(one), each.about.bytes, gone, left);
    }
  }

 private:
  template <class Block>
  KVPOLICY_HD void move(Block& block, std::byte* row, int width, int gone, int left) const {
    std::byte* const to = row - std::int64_t{slid} * width;
    std::byte const* const from = row + std::int64_t{gone} * width;
    constexpr int word = static_cast<int>(sizeof(unsigned));
    if ((reinterpret_cast<std::uintptr_t>(row) | static_cast<unsigned>(width)) % sizeof(unsigned) == 0) {
      move_down(block, reinterpret_cast<unsigned*>(to), reinterpret_cast<unsigned const*>(from), left * (width / word));
    } else {
      move_down(block, to, from, left * width);
    }
  }
};

/// A block a sequence: positions move up, the ring's cursor moves on.
struct drop_oldest_kernel {
  lanes who;
  by_lane<int> oldest;
  int rows;  ///< of the ring
  int const* entries;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one{block.index(), who.layer_begin, 0};
    int const gone = entries[one.sequence];
    int const count = *who.count.row(one);
    int* const position = who.position.row(one);
    if (gone > 0) move_down(block, position, position + gone, count - gone);
    block.sync();
    if (block.thread() != 0) return;
    *who.count.row(one) = count - gone;
    int* const first = oldest.row(one);
    *first = (*first + gone) % rows;
  }
};

/// A warp a row, then a thread an entry for what is recorded: block i takes piece i % pieces of lane i / pieces.
struct enter_rows_kernel {
  entry_rows from;
  by_lane<int> from_count;
  lanes who;
  entry_rows to;
  column_pairs columns;
  int const* first;
  int pieces;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = who.at(block.index() / pieces);
    int const piece = block.index() % pieces;
    int const count = *who.count.row(one);
    int const begin = first[one.sequence];
    int const more = *from_count.row(one) - begin;
    int const planes = to.planes.count;
    int const warps = block.threads() / warp_size;
    for (int i = piece * warps + warp_id(block); i < more * planes; i += pieces * warps) {
      copy_entry(lane_id(block), warp_size, from, to, one, begin + i / planes, count + i / planes, i % planes);
    }
    for (int e = piece * block.threads() + block.thread(); e < more; e += pieces * block.threads()) {
      copy_numbers(columns, 0, one, begin + e, count + e);
    }
  }
};

/// A block a sequence: positions of what entered, and the count.
struct count_entered_kernel {
  by_lane<int> from_count;
  by_lane<int> from_position;
  lanes who;
  int const* first;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one{block.index(), who.layer_begin, 0};
    int const count = *who.count.row(one);
    int const begin = first[one.sequence];
    int const more = *from_count.row(one) - begin;
    for (int e = block.thread(); e < more; e += block.threads()) {
      who.position.row(one)[count + e] = from_position.row(one)[begin + e];
    }
    block.sync();
    if (block.thread() == 0) *who.count.row(one) = count + more;
  }
};

/// A block a sequence: positions of a chunk ascend, and follow those of the window.
struct refuse_chunk_kernel {
  by_lane<int> from_count;
  by_lane<int> from_position;
  lanes who;
  fault_word faults;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one{block.index(), who.layer_begin, 0};
    int const held = *who.count.row(one);
    int const last = held > 0 ? who.position.row(one)[held - 1] : -1;
    int const count = *from_count.row(one);
    int const* const position = from_position.row(one);
    for (int e = block.thread(); e < count; e += block.threads()) {
      int const before = e > 0 ? position[e - 1] : last;
      if (position[e] <= before) tell_fault(block, faults, fault::window_position, one.sequence, position[e]);
    }
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::drop_oldest_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, cache const& window, by_lane<int> const& oldest, std::span<held_column const> columns,
                  int const* entries, int slid) {
    lanes const& who = window.who;
    int const threads = exec.numbers().lane_threads;
    if (!columns.empty()) {
      detail::few_columns const all = detail::all_columns("make_room", columns);
      detail::launch_change(exec, {who.size(), threads, 0}, detail::move_home_kernel{who, all, entries, slid});
    }
    detail::launch_change(exec, {who.sequences, threads, 0},
                          detail::drop_oldest_kernel{who, oldest, window.where.unit_tokens, entries});
  }
};

template <kernel_backend Backend>
struct implementation<ops::enter_rows_t, Backend> {
  static constexpr bool provided = true;

  /// What makes a chunk unfit to follow the window, asked before anything is written.
  template <class Executor>
  static void refuse(Executor& exec, cache const& from, cache const& window) {
    detail::refuse_other_rows("take_in", from, window);
    exec.launch({window.who.sequences, exec.numbers().entry_threads, 0},
                detail::refuse_chunk_kernel{from.who.count, from.who.position, window.who, exec.faults()});
  }

  template <class Executor>
  static void run(Executor& exec, cache const& from, std::span<held_column const> from_columns, cache const& window,
                  std::span<held_column const> columns, int const* first) {
    lanes const& who = window.who;
    detail::enter_rows_kernel kernel{detail::entry_rows_of("take_in", from),
                                     from.who.count,
                                     who,
                                     detail::entry_rows_of("take_in", window),
                                     detail::moved_with("take_in", columns, from_columns),
                                     first,
                                     1};
    std::int64_t const most = std::int64_t{who.bound} * kernel.to.planes.count;
    kernel.pieces = detail::blocks_for_rows(exec, who.size(), most);
    detail::launch_change(exec, {who.size() * kernel.pieces, exec.numbers().row_threads, 0}, kernel);
    detail::launch_change(exec, {who.sequences, exec.numbers().entry_threads, 0},
                          detail::count_entered_kernel{from.who.count, from.who.position, who, first});
  }
};

}  // namespace KVPOLICY_NAMESPACE
