// Device implementation of drop_listed: lists close up behind the one entry of a lane that goes.
#pragma once

#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/cuda/move_rows.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Entries behind the one that goes move up by one place.
struct closing_moves {
  int ordinal = -1;  ///< the one that goes; below 0: none
  int last = 0;

  [[nodiscard]] KVPOLICY_HD bool none() const { return ordinal < 0; }
  [[nodiscard]] KVPOLICY_HD int count() const { return last; }
  [[nodiscard]] KVPOLICY_HD int source(int i) const { return i < ordinal ? i : i + 1; }
};

struct closing_lanes {
  keep_set keep{};
  kvpolicy::lanes lanes{};

  /// Entries of the i-th lane that go: one or none.
  [[nodiscard]] KVPOLICY_HD int gone(int i) const {
    int const segment = segment_of(lanes, keep.decides, i);
    return keep.indptr[segment + 1] > keep.indptr[segment] ? 1 : 0;
  }
  [[nodiscard]] KVPOLICY_HD closing_moves of(int i) const {
    if (gone(i) == 0) return {};
    return {keep.indices[keep.indptr[segment_of(lanes, keep.decides, i)]], *lanes.count.row(lanes.at(i)) - 1};
  }
};

/// Lists of slots close up, and the slot that goes stands behind: the first block of a lane does it. The others carry
/// positions and columns.
struct close_kernel {
  permute_kernel<closing_lanes> carry;
  unit_table list;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const of_a_lane = carry.slices + 1;
    int const i = block.index() / of_a_lane;
    int const slice = block.index() % of_a_lane - 1;
    if (slice >= 0) return carry.run(block, i, slice);
    closing_moves const now = carry.moves.of(i);
    lane const one = carry.lanes.at(i);
    if (!now.none() && leads_row(list.shares, carry.lanes, one)) close_list(block, now, list.row(one));
  }

 private:
  /// As tile_mover, of ints; the slot that goes is read before the first of them is written, and written last.
  template <class Block>
  KVPOLICY_HD static void close_list(Block& block, closing_moves const& now, int* slot) {
    int const gone = slot[now.ordinal];
    for (int i = now.ordinal; i < now.last; i += block.threads()) {
      int const e = i + block.thread();
      int const next = e < now.last ? slot[e + 1] : 0;
      block.sync();
      if (e < now.last) slot[e] = next;
    }
    block.sync();
    if (block.thread() == 0) slot[now.last] = gone;
  }
};

struct fewer_by_one {
  closing_lanes moves;

  template <class Block>
  KVPOLICY_HD void operator()(Block&, std::int64_t i) const {
    lane const one = moves.lanes.at(static_cast<int>(i));
    if (leads_row(moves.lanes.count, moves.lanes, one)) *moves.lanes.count.row(one) -= moves.gone(static_cast<int>(i));
  }
};

}  // namespace detail

/// Two launches: what is listed by entry, and the counts, which lanes may share and all blocks of the first ask for.
/// More than eight columns take further launches.
template <kernel_backend Backend>
struct implementation<ops::drop_listed_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& list,
                  std::span<recorded_column const> columns) {
    detail::closing_lanes const moves{keep, in.lanes};
    bool lists_left = true;
    detail::for_each_permute(exec, moves, in, columns, false, [&](auto const& carry) {
      if (lists_left) {
        int const blocks = in.lanes.size() * (carry.slices + 1);
        detail::launch_change(exec, launch_shape{blocks, exec.config().row_threads, 0},
                              detail::close_kernel{carry, detail::table_of(in.where, list)});
      } else {
        detail::launch_permute(exec, carry);
      }
      lists_left = false;
    });
    detail::launch_each_change(exec, in.lanes.size(), detail::fewer_by_one{moves});
  }
};

}  // namespace KVPOLICY_NAMESPACE
