// SPDX-License-Identifier: Apache-2.0
// Rewrites lists: a stable partition tile by tile, which also lists each dropped unit once, so that the pool can take
// it back.
#pragma once

#include <kvpolicy/ops/cuda/lists/rows.hpp>
#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// One bit for every unit of a pool, in device memory that belongs to one block.
struct block_marks {
  unsigned* words;

  [[nodiscard]] KVPOLICY_HD static constexpr std::int64_t words_for(std::int64_t units) { return (units + 31) / 32; }
  [[nodiscard]] KVPOLICY_HD static constexpr unsigned bit(int unit) { return 1u << (unit & 31); }
  [[nodiscard]] KVPOLICY_HD bool has(int unit) const { return (words[unit >> 5] & bit(unit)) != 0; }
  /// Sets the bit of a unit. True if it was set before.
  template <class Block>
  KVPOLICY_HD bool set(Block& block, int unit) const {
    return (block.atomic_or(words + (unit >> 5), bit(unit)) & bit(unit)) != 0;
  }
};

/// Finds, for each unit in a tile, the first thread that has it and that no mark names yet; then marks the unit. Of
/// equal units the lowest thread wins, whichever comes first.
struct first_claims {
  int* unit;     ///< shared memory, one int for each thread
  int* contest;  ///< one int of shared memory

  /// True in the thread that wins its unit. `asks` says that this thread has a unit; `marks` has the units that earlier
  /// tiles have claimed. Collective.
  template <class Block>
  KVPOLICY_HD bool claim(Block& block, block_marks const& marks, bool asks, int mine) const {
    bool const open = asks && !marks.has(mine);
    unit[block.thread()] = open ? mine : -1;
    if (block.thread() == 0) *contest = 0;
    block.sync();
    if (open && marks.set(block, mine)) block.atomic_or(contest, 1);
    block.sync();
    bool first = open;
    if (*contest != 0) {
      for (int t = 0; first && t < block.thread(); ++t) first = unit[t] != mine;
    }
    return first;
  }
};

/// A lane's row of a unit list, or null pointers where there is no list.
struct unit_row {
  int* unit;
  int* count;

  [[nodiscard]] KVPOLICY_HD static unit_row of(unit_list const& list, lane this_lane) {
    return {list.unit.data != nullptr ? list.unit.row(this_lane) : nullptr,
            list.count.data != nullptr ? list.count.row(this_lane) : nullptr};
  }
  KVPOLICY_HD void put(int at, int which) const {
    if (unit != nullptr) unit[at] = which;
  }
  KVPOLICY_HD void set_count(int all) const {
    if (count != nullptr) *count = all;
  }
};

/// Rewrites the rows of a list, one block for each row at a time: first the kept slots, then those of drafts, then the
/// dropped ones.
template <class Shared>
struct rewrite_kernel {
  keep_set keep;
  cache in;  ///< `more` is host memory and is not read
  list_edit<Shared> edit;
  row_owners rows;
  std::byte* scratch;
  std::int64_t* freed;

  /// Bytes of the marks of one block.
  [[nodiscard]] KVPOLICY_HD static std::int64_t marks_bytes(cache const& in) {
    return (block_marks::words_for(in.where.units) * 4 + 15) / 16 * 16;
  }
  /// Bytes of scratch for one block: its marks, and the dropped slots of one list.
  [[nodiscard]] KVPOLICY_HD static std::int64_t scratch_of_block(cache const& in) {
    return marks_bytes(in) + (std::int64_t{in.lanes.capacity} * 4 + 15) / 16 * 16;
  }
  [[nodiscard]] static std::size_t shared_bytes(int threads) {
    return shared_arena::bytes_of_piece<int>(threads) + shared_arena::bytes_of_piece<int>(1) + collective_bytes();
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    for (int row = block.index(); row < rows.count(); row += block.blocks()) rewrite(block, rows.at(row));
  }

 private:
  static constexpr int stayed = 0, freed_unit = 1, released = 2;  ///< the kinds that are counted
  struct workspace {
    block_marks marks;
    int* dropped;  ///< device memory: the dropped slots in order
    first_claims claims;
    collective_storage* storage;
  };

  template <class Block>
  [[nodiscard]] KVPOLICY_HD workspace workspace_of(Block& block) const {
    std::byte* const mine = scratch + block.index() * scratch_of_block(in);
    shared_arena arena(block);
    workspace of;
    of.marks.words = reinterpret_cast<unsigned*>(mine);
    of.dropped = reinterpret_cast<int*>(mine + marks_bytes(in));
    of.claims.unit = arena.take<int>(block.threads());
    of.claims.contest = arena.take<int>(1);
    of.storage = arena.take<collective_storage>(1);
    return of;
  }

  template <class Block>
  KVPOLICY_HD void rewrite(Block& block, lane this_lane) const {
    workspace const work = workspace_of(block);
    listed_row const kept = listed_for(keep, this_lane);
    int const count = *in.lanes.count.row(this_lane);
    int const committed = in.lanes.committed(this_lane);
    int* const slot = writable_list(edit.list, in.where, this_lane);
    mark_kept(block, work.marks, kept, slot, committed, count);
    three_counts now;
    for (int begin = 0; begin < count; begin += block.threads()) {
      partition(block, work, this_lane, kept, slot, begin, committed, count, now);
    }
    block.sync();
    for (int i = block.thread(); i < count - now.of[stayed]; i += block.threads())
      slot[now.of[stayed] + i] = work.dropped[i];
    if (block.thread() == 0) report_freed(block, this_lane, now);
  }

  /// Marks the units that the lane keeps. Of other units, the marks that will be read are cleared.
  template <class Block>
  KVPOLICY_HD void mark_kept(Block& block, block_marks const& marks, listed_row const& kept, int const* slot,
                             int committed, int count) const {
    std::int64_t const words = block_marks::words_for(in.where.units);
    bool const whole = words <= count;
    std::int64_t const cleared = whole ? words : count;
    for (std::int64_t i = block.thread(); i < cleared; i += block.threads()) {
      marks.words[whole ? i : std::int64_t{slot[i] >> 5}] = 0;
    }
    block.sync();
    for (int i = block.thread(); i < kept.count; i += block.threads()) marks.set(block, slot[kept.ordinal[i]]);
    for (int e = committed + block.thread(); e < count; e += block.threads()) marks.set(block, slot[e]);
    block.sync();
  }

  /// Partitions entries [begin, begin + threads). Kept slots move to the front. They never overwrite a slot that is
  /// still to be read: no more are kept than came before, and this tile has been read.
  template <class Block>
  KVPOLICY_HD void partition(Block& block, workspace const& work, lane this_lane, listed_row const& kept, int* slot,
                             int begin, int committed, int count, three_counts& now) const {
    int const e = begin + block.thread();
    listed_row const left{kept.ordinal + now.of[stayed], min_op{}(kept.count - now.of[stayed], block.threads())};
    bool const there = e < count;
    bool const stays = there && (e >= committed || left.has(e));
    bool const falls = there && !stays;
    int const unit = there ? slot[e] : 0;
    bool const goes = work.claims.claim(block, work.marks, falls && unit != edit.dead, unit);
    int const position = there ? in.lanes.position.row(this_lane)[e] : 0;
    bool const given = goes && position >= number_or_zero(edit.locked_prefix, this_lane) && !edit.shared(unit);
    block.sync();
    int const kind = stays ? stayed : given ? freed_unit : goes ? released : -1;
    auto const sum = block.exclusive_sum(work.storage, three_counts::packed(kind));
    three_counts const before = now.with(sum.before);
    if (stays) slot[before.of[stayed]] = unit;
    if (falls) work.dropped[e - before.of[stayed]] = unit;
    if (falls && edit.map.data != nullptr) map_row(edit.map, edit.map_begin, this_lane)[position] = edit.dead;
    if (given) unit_row::of(edit.freed, this_lane).put(before.of[freed_unit], unit);
    if (goes && !given) unit_row::of(edit.released, this_lane).put(before.of[released], unit);
    now = now.with(sum.all);
  }

  template <class Block>
  KVPOLICY_HD void report_freed(Block& block, lane this_lane, three_counts const& now) const {
    unit_row::of(edit.freed, this_lane).set_count(now.of[freed_unit]);
    unit_row::of(edit.released, this_lane).set_count(now.of[released]);
    if (freed != nullptr) add_to_stats(block, freed, std::int64_t{now.of[freed_unit]} * rows.sharers());
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
