// SPDX-License-Identifier: Apache-2.0
// Device implementation of fill_holes: one launch pairs rows with holes, another moves all rows.
#pragma once

#include <kvpolicy/ops/cuda/moves/move_rows.hpp>
#include <kvpolicy/ops/cuda/run/page_launches.hpp>
#include <kvpolicy/ops/cuda/select/bins.hpp>
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The slots of one list that change their use. In scratch; one int for each entry is enough, since no more rows move
/// than entries are kept.
struct slot_moves {
  int* pairs = nullptr;    ///< how many rows move
  int* vacated = nullptr;  ///< freed slots, one for each dropped entry; first those that moved rows leave
  int* holes = nullptr;    ///< the destinations of those rows; stored behind `vacated`
};

/// The scratch of all lists. Lanes that share a list share its scratch.
struct slot_storage {
  int* memory;
  row_owners lists;

  [[nodiscard]] static std::size_t bytes(row_owners const& lists) {
    return static_cast<std::size_t>(lists.count()) * static_cast<std::size_t>(lists.lanes.capacity + 1) * sizeof(int);
  }
  [[nodiscard]] KVPOLICY_HD slot_moves of(lane one, int gone) const {
    int* const first = memory + std::int64_t{lists.row(one)} * (lists.lanes.capacity + 1);
    return {first, first + 1, first + 1 + gone};
  }
};

/// One block of threads for each list: finds the slots that the lane goes on to use, which are its lowest; pairs rows
/// in other slots with holes; and rewrites the list.
struct pair_holes_kernel {
  kept_lanes moves;
  unit_table list;
  slot_storage storage;

  [[nodiscard]] static constexpr std::size_t shared_bytes(int threads) {
    return search_or_sort_bytes(threads) + shared_arena::bytes_of_piece<int>(sorted_of_a_thread * threads) +
           shared_arena::bytes_of_piece<int>(1);
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = storage.lists.at(block.index());
    kept_moves const now = moves.of(moves.lanes.index(one));
    int const gone = now.committed - now.entries;
    slot_moves const temp_storage = storage.of(one, gone);
    if (gone <= 0) {
      if (block.thread() == 0) *temp_storage.pairs = 0;
      return;
    }
    select_storage const search(block, 0);
    int* const slot = list.row(one);
    int const lowest = nth_highest(block, slot, now.committed + now.drafts, gone, search);
    pair_up(block, now, slot, lowest, gone, temp_storage, search.collective);
    rewrite(block, now, slot, lowest, temp_storage, search.collective);
    block.sync();
    list_freed(block, temp_storage.vacated, gone, slot + now.count(), search);
  }

 private:
  /// What finds the lowest slots and what sorts them use the same memory, one after the other.
  [[nodiscard]] KVPOLICY_HD static constexpr std::size_t search_or_sort_bytes(int threads) {
    return max_op{}(select_storage::bytes_without_keys(), sort_bytes(threads));
  }

  /// The n-th highest of `count` numbers, which are at least 0, with n from 1 to count. Collective.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD static int nth_highest(Block& block, int const* values, int count, int n,
                                                   select_storage const& search) {
    bin_range bins = bin_range::over(0, 0x7FFFFFFF);
    while (bins.low < bins.high) {
      search.clear(block);
      block.sync();
      for (int i = block.thread(); i < count; i += block.threads()) {
        auto const key = static_cast<std::uint32_t>(values[i]);
        if (bins.have(key)) block.atomic_add(search.bins + bins.bin_of(key), 1u);
      }
      block.sync();
      chosen_bin const chosen = choose_bin<false>(block, n, search, false);
      bins = bins.narrowed(chosen.bin);
      n = chosen.left;
    }
    return static_cast<int>(bins.low);
  }

  /// Writes the freed slots, which are distinct, in ascending order: as many of the lowest as a block sorts at once,
  /// then the next ones.
  template <class Block>
  KVPOLICY_HD static void list_freed(Block& block, int const* freed, int gone, int* to, select_storage const& search) {
    int const most = sorted_of_a_thread * block.threads();
    shared_arena arena(block);
    auto* const both = arena.take<std::byte>(static_cast<int>(search_or_sort_bytes(block.threads())));
    int* const some = arena.take<int>(most);
    int* const taken = arena.take<int>(1);
    int listed = -1;  // slots up to this one are listed
    for (int done = 0; done < gone; done += most) {
      int const left = gone - done;
      int const high = left <= most ? 0x7FFFFFFF : nth_highest(block, freed, gone, left - most + 1, search);
      if (block.thread() == 0) *taken = 0;
      block.sync();
      for (int i = block.thread(); i < gone; i += block.threads()) {
        if (freed[i] <= listed || freed[i] > high) continue;
        int const at = block.atomic_add(taken, 1);
        if (at < most) some[at] = freed[i];
      }
      block.sync();
      int const here = left < most ? left : most;
      block.sort(both, some, here);
      block.sync();
      for (int i = block.thread(); i < here; i += block.threads()) to[done + i] = some[i];
      listed = high;
      block.sync();
    }
  }

  /// True if entry e is kept or a draft.
  [[nodiscard]] KVPOLICY_HD static bool stays(kept_moves const& now, int e, int before) {
    return e >= now.committed || (before < now.entries && now.kept[before] == e);
  }

  /// Lists, in the order of entries, the slots of rows that move (kind 0), the holes (1), and other slots that are
  /// freed (2).
  template <class Block>
  KVPOLICY_HD static void pair_up(Block& block, kept_moves const& now, int const* slot, int lowest, int gone,
                                  slot_moves const& temp_storage, collective_storage* storage) {
    int const count = now.committed + now.drafts;
    three_counts all;
    for (int begin = 0; begin < count; begin += block.threads()) {
      int const e = begin + block.thread();
      bool const there = e < count;
      bool const stay = there && stays(now, e, now.before(e));
      int const slot_here = there ? slot[e] : 0;
      int const kind = !there || (stay && slot_here < lowest) ? -1 : stay ? 0 : slot_here < lowest ? 1 : 2;
      block.sync();
      prefix_sum<std::uint64_t> const sum = block.exclusive_sum(storage, three_counts::packed(kind));
      three_counts const before = all.with(sum.before);
      if (kind == 0) temp_storage.vacated[before.of[0]] = slot_here;
      if (kind == 1) temp_storage.holes[before.of[1]] = slot_here;
      if (kind == 2) temp_storage.vacated[gone - 1 - before.of[2]] = slot_here;
      all = all.with(sum.all);
    }
    if (block.thread() == 0) *temp_storage.pairs = all.of[0];
    block.sync();
  }

  /// Moves kept entries to the front of the list, each with its slot or its hole. In place: a piece of the list is read
  /// before the barrier, and written at or before its place after it.
  template <class Block>
  KVPOLICY_HD static void rewrite(Block& block, kept_moves const& now, int* slot, int lowest,
                                  slot_moves const& temp_storage, collective_storage* storage) {
    int const count = now.committed + now.drafts;
    int moved = 0;
    for (int begin = 0; begin < count; begin += block.threads()) {
      int const e = begin + block.thread();
      int const before = e < count ? now.before(e) : 0;
      bool const stay = e < count && stays(now, e, before);
      int const slot_here = e < count ? slot[e] : 0;
      bool const moves_row = stay && slot_here >= lowest;
      block.sync();
      prefix_sum<int> const sum = block.rank(storage, moves_row);
      int const to = e < now.committed ? before : now.entries + e - now.committed;
      if (stay) slot[to] = moves_row ? temp_storage.holes[moved + sum.before] : slot_here;
      moved += sum.all;
    }
  }
};

/// Copies rows from slots to holes, in any order, since no slot is both. A thread has pieces of several rows in flight;
/// behind the last pair it loads that of the last again.
struct pair_mover {
  static constexpr int at_once = 4;
  moved_rows const& what;
  kvpolicy::lane lane;
  slot_moves const& temp_storage;
  int piece, pieces;

  template <int Width, class Block>
  KVPOLICY_HD void run(Block& block) const {
    using bytes = byte_vector<Width>;
    thread_grid const mine(block, what, 0);
    if (mine.row >= mine.tall || mine.column >= mine.wide) return;
    int const pairs = *temp_storage.pairs;
    int const apart = pieces * mine.tall;
    for (int i = piece * mine.tall + mine.row; i < pairs; i += at_once * apart) {
      std::byte const* from[at_once];
      for (int r = 0; r < at_once; ++r) {
        from[r] = what.rows.row(lane.layer, {temp_storage.vacated[min_op{}(i + r * apart, pairs - 1)], 0}, lane.head);
      }
      for (int c = mine.column; c < what.columns; c += mine.wide) {
        bytes staged[at_once];
        for (int r = 0; r < at_once; ++r) staged[r] = *reinterpret_cast<bytes const*>(from[r] + c * what.step);
        for (int r = 0; r < at_once && i + r * apart < pairs; ++r) {
          std::byte* const to = what.rows.row(lane.layer, {temp_storage.holes[i + r * apart], 0}, lane.head);
          *reinterpret_cast<bytes*>(to + c * what.step) = staged[r];
        }
      }
    }
  }
};

/// One block for each piece of the pairs of each lane and plane.
struct move_pairs_kernel {
  kept_lanes moves;
  few_moved what;
  slot_storage storage;
  int pieces;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const i = block.index() / pieces / what.count;
    moved_rows const& mine = what.of[block.index() / pieces % what.count];
    lane const one = moves.lanes.at(i);
    kept_moves const now = moves.of(i);
    slot_moves const temp_storage = storage.of(one, now.committed - now.entries);
    run_by_width(block, mine.width, pair_mover{mine, one, temp_storage, block.index() % pieces, pieces});
  }
};

}  // namespace detail

/// Takes two launches: one block for each list pairs rows with holes, then blocks for all lanes and planes move rows.
/// More than eight planes take further launches.
template <kernel_backend Backend>
struct implementation<ops::fill_holes_t, Backend> {
  /// Bytes of scratch for a cache with lists of slots; 0 for others, which never call this verb.
  [[nodiscard]] static std::size_t scratch(cache const& in) {
    if (in.where.kind == locating::identity || in.where.kind == locating::ring || in.where.unit_tokens > 1) return 0;
    return detail::slot_storage::bytes(detail::owners_of(detail::rows_of(in.where, in.where.table), in.lanes));
  }

  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& list,
                  std::span<recorded_column const> columns) {
    detail::check_scratch("fill_holes", exec, scratch(in));
    detail::check_movable("fill_holes", in);
    detail::kept_lanes const moves{keep, in.lanes};
    detail::unit_table const table = detail::table_of(in.where, list);
    detail::slot_storage const storage{reinterpret_cast<int*>(exec.scratch()),
                                       detail::owners_of(table.shares, in.lanes)};
    auto const threads = exec.threads().segment;
    detail::launch_unless_fault(
        exec, launch_shape{storage.lists.count(), threads, detail::pair_holes_kernel::shared_bytes(threads)},
        detail::pair_holes_kernel{moves, table, storage});
    auto const visit = [&](detail::few_moved const& some) {
      int const lanes = in.lanes.size() * some.count;
      int const pieces = detail::count_blocks_per_lane(exec, lanes, (in.lanes.capacity / 2 + 63) / 64);
      detail::launch_unless_fault(exec, launch_shape{lanes * pieces, exec.threads().row, 0},
                                  detail::move_pairs_kernel{moves, some, storage, pieces});
    };
    detail::moved_list planes(visit);
    planes.add_planes(in);
    planes.flush();
    detail::permute_lanes(exec, moves, in, columns, false);
  }
};

}  // namespace KVPOLICY_NAMESPACE
