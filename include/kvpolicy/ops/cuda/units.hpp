// SPDX-License-Identifier: Apache-2.0
// Device implementation of drop_units: blocks of the table in which no entry is kept leave it. fill_holes is in
// units_holes.hpp.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/cuda/entries.hpp>
#include <kvpolicy/ops/cuda/lists/unit_users.hpp>
#include <kvpolicy/ops/cuda/lists/units_holes.hpp>
#include <kvpolicy/ops/cuda/moves/move_rows.hpp>
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Which blocks of the table a lane keeps. In scratch.
struct kept_blocks {
  int* count = nullptr;  ///< entries of the lane
  int* stay = nullptr;   ///< how many blocks are kept
  int* total = nullptr;  ///< how many entries they have
  int* unit = nullptr;   ///< the indices of kept blocks, ascending; from the end backwards, the units of dropped ones
};

/// The entries of kept blocks become the entries of the lane.
struct kept_block_moves {
  int const* unit = nullptr;
  int tokens = 1;
  int total = 0;

  [[nodiscard]] KVPOLICY_HD bool none() const { return false; }
  [[nodiscard]] KVPOLICY_HD int count() const { return total; }
  [[nodiscard]] KVPOLICY_HD int source(int i) const { return unit[i / tokens] * tokens + i % tokens; }
};

struct unit_storage {
  int* memory = nullptr;
  int units = 0;  ///< the most blocks of a lane
  int tokens = 1;

  [[nodiscard]] static std::size_t bytes(cache const& in) {
    return static_cast<std::size_t>(in.lanes.size()) * static_cast<std::size_t>(most_units(in) + 3) * sizeof(int);
  }
  [[nodiscard]] KVPOLICY_HD kept_blocks blocks(int lane) const {
    int* const first = memory + std::int64_t{lane} * (units + 3);
    return {first, first + 1, first + 2, first + 3};
  }
  [[nodiscard]] KVPOLICY_HD kept_block_moves of(int lane) const {
    return {blocks(lane).unit, tokens, *blocks(lane).total};
  }
};

/// Refuses a stale plan and units outside of the pool, and clears the marks of units.
struct drop_check {
  stale_check stale;
  unit_users users;
  std::int64_t marks;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, device_error faults, std::int64_t i) const {
    if (i < marks) users.claims.first[i] = unit_claims::nobody;
    if (i < stale.lanes.size()) stale(block, faults, i);
    if (i >= std::int64_t{users.rows.count()} * users.most) return;
    lane const owner = users.rows.at(static_cast<int>(i / users.most));
    auto const place = static_cast<int>(i % users.most);
    if (place * users.where.unit_tokens >= *stale.lanes.count.row(owner)) return;
    int const unit = users.where.list(owner)[place];
    if (!users.claims.in_pool(unit)) report_fault(block, faults, fault::table_unit, stale.lanes.index(owner), unit);
  }
};

/// Finds which blocks of the table each lane keeps, one block of threads for each lane. The first of the lanes that
/// share a row of the table rewrites the row. Further blocks mark the units of other slots.
struct kept_blocks_kernel {
  kept_lanes moves;
  unit_table table;
  unit_storage storage;
  unit_users users;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const i = block.index();
    if (i >= moves.lanes.size()) {
      return users.mark_other(block, i - moves.lanes.size(), shared_arena(block).take<collective_storage>(1));
    }
    lane const one = moves.lanes.at(i);
    kept_moves const now = moves.of(i);
    kept_blocks const temp_storage = storage.blocks(i);
    int const tokens = storage.tokens;
    int const count = now.committed + now.drafts;
    int const units = (count + tokens - 1) / tokens;
    int* const row = leads_row(table.shares, moves.lanes, one) ? table.row(one) : nullptr;
    int const stay = part(block, now, units, temp_storage, row);
    block.sync();
    if (block.thread() == 0) {
      bool const last_stays = stay > 0 && temp_storage.unit[stay - 1] == units - 1;
      *temp_storage.count = count;
      *temp_storage.stay = stay;
      *temp_storage.total = stay * tokens - (last_stays ? units * tokens - count : 0);
    }
    if (row == nullptr) return;
    for (int g = block.thread(); g < units - stay; g += block.threads()) {
      row[stay + g] = temp_storage.unit[storage.units - 1 - g];
    }
    block.sync();
    users.mark(block, one, {stay, units - stay}, row);
  }

 private:
  /// True if block `unit` of a lane has a kept entry or a draft.
  [[nodiscard]] KVPOLICY_HD bool stays(kept_moves const& now, int unit) const {
    int const count = now.committed + now.drafts;
    int const begin = unit * storage.tokens;
    int const end = min_op{}(count, begin + storage.tokens);
    int const next = now.before(begin);
    return end > now.committed || (next < now.entries && now.kept[next] < end);
  }

  /// Partitions blocks: kept ones go to the front of the table's row and of the scratch, dropped ones to the end of the
  /// scratch. In place: a piece of the row is read before the barrier, and written at or before its place
  /// after it.
  template <class Block>
  KVPOLICY_HD int part(Block& block, kept_moves const& now, int units, kept_blocks const& temp_storage,
                       int* row) const {
    auto* const storage_of_rank = shared_arena(block).take<collective_storage>(1);
    int front = 0;
    for (int begin = 0; begin < units; begin += block.threads()) {
      int const at = begin + block.thread();
      bool const stay = at < units && stays(now, at);
      int const unit_here = row != nullptr && at < units ? row[at] : 0;
      block.sync();
      prefix_sum<int> const before = block.rank(storage_of_rank, stay);
      int const to = front + before.before;
      if (stay) {
        temp_storage.unit[to] = at;
        if (row != nullptr) row[to] = unit_here;
      } else if (at < units) {
        temp_storage.unit[storage.units - 1 - (at - to)] = unit_here;
      }
      front += before.all;
    }
    return front;
  }
};

/// Lists the blocks that left the rows of a table, and writes the counts; one block of threads for each lane.
template <class Shared>
struct list_gone_kernel {
  kvpolicy::lanes lanes;
  list_edit<Shared> edit;
  unit_table table;
  std::int64_t* entries;  ///< increased by the entries in freed blocks; may be null
  unit_storage storage;
  unit_users users;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = lanes.at(block.index());
    kept_blocks const mine = storage.blocks(block.index());
    if (block.thread() == 0 && leads_row(lanes.count, lanes, one)) *lanes.count.row(one) = *mine.total;
    if (leads_row(table.shares, lanes, one)) list(block, one, mine);
  }

 private:
  template <class Block>
  KVPOLICY_HD void list(Block& block, lane one, kept_blocks const& mine) const {
    auto* const storage_of_rank = shared_arena(block).take<collective_storage>(1);
    int const tokens = users.where.unit_tokens;
    int const gone = (*mine.count + tokens - 1) / tokens - *mine.stay;
    int const* const unit = table.row(one) + *mine.stay;
    int const last = *mine.count - *mine.total - (gone - 1) * tokens;  // entries of the last block that leaves
    std::int64_t const lanes_of_row =
        std::int64_t{users.rows.sharers()} * (users.rows.by_sequence ? 1 : lanes.sequences);
    int freed = 0;
    for (int begin = 0; begin < gone; begin += block.threads()) {
      int const at = begin + block.thread();
      bool const is_free = at < gone && users.falls_free(one, *mine.stay + at, unit[at]) && !edit.shared(unit[at]);
      block.sync();
      prefix_sum<int> const before = block.rank(storage_of_rank, is_free);
      int const to = freed + before.before;
      if (is_free && edit.freed.unit.data != nullptr) edit.freed.unit.row(one)[to] = unit[at];
      if (at < gone && !is_free && edit.released.unit.data != nullptr) edit.released.unit.row(one)[at - to] = unit[at];
      if (is_free && entries != nullptr) {
        add_to_stats(block, entries, (at == gone - 1 ? last : tokens) * lanes_of_row);
      }
      freed += before.all;
    }
    if (block.thread() > 0) return;
    if (edit.freed.count.data != nullptr) *edit.freed.count.row(one) = freed;
    if (edit.released.count.data != nullptr) *edit.released.count.row(one) = gone - freed;
  }
};

}  // namespace detail

/// Takes four launches: checks, which blocks are kept, positions and columns, and lists and counts. Scratch: an int for
/// each block of every lane, three for each lane, and one for each unit that several rows could name.
template <kernel_backend Backend>
struct implementation<ops::drop_units_t, Backend> {
  /// Bytes of scratch for a cache with a table of units; 0 for others, which never call this verb.
  [[nodiscard]] static std::size_t scratch(cache const& in) {
    return detail::names_units(in.where) ? detail::unit_storage::bytes(in) + detail::users_bytes(in) : 0;
  }

  template <class Executor, class Shared>
  static void run(Executor& exec, keep_set const& keep, cache const& in, list_edit<Shared> const& edit,
                  std::span<recorded_column const> columns, std::int64_t* entries) {
    detail::check_scratch("drop_units", exec, scratch(in));
    bool const asks = edit.freed.count.data != nullptr || edit.released.count.data != nullptr || entries != nullptr;
    detail::unit_users const users =
        detail::users_of(in, asks ? exec.scratch() + detail::unit_storage::bytes(in) : nullptr);
    detail::unit_storage const storage{reinterpret_cast<int*>(exec.scratch()), users.most, in.where.unit_tokens};
    std::int64_t const marks = users.claims.first != nullptr ? in.where.units * users.claims.pool_end : 0;
    std::int64_t const places = std::int64_t{users.rows.count()} * users.most;
    detail::launch_check(exec, std::max({marks, places, std::int64_t{in.lanes.size()}}),
                         detail::drop_check{{in.lanes, keep}, users, marks});
    detail::unit_table const table = detail::table_of(in.where, edit.list);
    detail::kept_blocks_kernel const blocks{{keep, in.lanes}, table, storage, users};
    auto const threads = exec.threads().lane;
    detail::launch_unless_fault(
        exec, launch_shape{in.lanes.size() + users.others(), threads, detail::collective_bytes()}, blocks);
    detail::permute_lanes(exec, storage, in, columns, false);
    detail::launch_unless_fault(exec, launch_shape{in.lanes.size(), threads, detail::collective_bytes()},
                                detail::list_gone_kernel<Shared>{in.lanes, edit, table, entries, storage, users});
  }
};

/// A check would cost each `apply` of an applier that moves rows another launch, so the kernels trust the table.
template <kernel_backend Backend>
struct implementation<ops::check_units_t, Backend> {
  static void run(auto&, keep_set const&, cache const&, bool) {}
};

}  // namespace KVPOLICY_NAMESPACE
