// Device implementation of drop_units: blocks of the table in which no entry is kept leave it. fill_holes is in
// units_holes.hpp.
#pragma once

#include <kvpolicy/ops/cuda/move_rows.hpp>
#include <kvpolicy/ops/cuda/units_holes.hpp>
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Which blocks of the table a lane keeps. In scratch.
struct kept_blocks {
  int* stay = nullptr;   ///< how many blocks are kept
  int* total = nullptr;  ///< how many entries they have
  int* unit = nullptr;   ///< the indices of kept blocks, ascending; from the end backwards, the units of dropped ones
};

struct unit_storage {
  int* memory = nullptr;
  int units = 0;  ///< the most blocks of a lane

  [[nodiscard]] static std::size_t bytes(cache const& in) {
    return static_cast<std::size_t>(in.lanes.size()) * static_cast<std::size_t>(most(in) + 2) * sizeof(int);
  }
  [[nodiscard]] static int most(cache const& in) {
    int const tokens = in.where.unit_tokens > 0 ? in.where.unit_tokens : 1;
    return (in.lanes.bound + tokens - 1) / tokens;
  }
  [[nodiscard]] KVPOLICY_HD kept_blocks of(int lane) const {
    int* const first = memory + std::int64_t{lane} * (units + 2);
    return {first, first + 1, first + 2};
  }
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

struct kept_block_lanes {
  unit_storage storage;
  int tokens = 1;

  [[nodiscard]] KVPOLICY_HD kept_block_moves of(int i) const {
    kept_blocks const temp_storage = storage.of(i);
    return {temp_storage.unit, tokens, *temp_storage.total};
  }
};

/// Finds which blocks of the table each lane keeps, one block of threads for each lane. The first of the lanes that
/// share a row of the table rewrites the row.
struct kept_blocks_kernel {
  kept_lanes moves;
  unit_table table;
  unit_list freed;
  std::uint64_t* entries;  ///< increased by the entries in dropped blocks; may be null
  int tokens;
  unit_storage storage;

  [[nodiscard]] static std::size_t shared_bytes() { return collective_bytes(); }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const i = block.index();
    lane const one = moves.lanes.at(i);
    kept_moves const now = moves.of(i);
    kept_blocks const temp_storage = storage.of(i);
    int const count = now.committed + now.drafts;
    int const units = (count + tokens - 1) / tokens;
    int* const row = leads_row(table.shares, moves.lanes, one) ? table.row(one) : nullptr;
    int const stay = part(block, now, units, temp_storage, row);
    block.sync();
    if (block.thread() == 0) {
      bool const last_stays = stay > 0 && temp_storage.unit[stay - 1] == units - 1;
      *temp_storage.stay = stay;
      *temp_storage.total = stay * tokens - (last_stays ? units * tokens - count : 0);
      if (entries != nullptr && count > *temp_storage.total) {
        block.atomic_add(entries, static_cast<std::uint64_t>(count - *temp_storage.total));
      }
    }
    if (row != nullptr) give_back(block, one, units - stay, temp_storage, row + stay);
  }

 private:
  /// True if block `unit` of a lane has a kept entry or a draft.
  [[nodiscard]] KVPOLICY_HD bool stays(kept_moves const& now, int unit) const {
    int const count = now.committed + now.drafts;
    int const begin = unit * tokens;
    int const end = count - begin < tokens ? count : begin + tokens;
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

  template <class Block>
  KVPOLICY_HD void give_back(Block& block, lane one, int gone, kept_blocks const& temp_storage, int* behind) const {
    bool const lists_units = freed.unit.data != nullptr;
    for (int i = block.thread(); i < gone; i += block.threads()) {
      int const unit = temp_storage.unit[storage.units - 1 - i];
      behind[i] = unit;
      if (lists_units) freed.unit.row(one)[i] = unit;
    }
    if (block.thread() == 0 && freed.count.data != nullptr) *freed.count.row(one) = lists_units ? gone : 0;
  }
};

struct count_kept_blocks {
  kvpolicy::lanes lanes;
  unit_storage storage;

  template <class Block>
  KVPOLICY_HD void operator()(Block&, std::int64_t i) const {
    lane const one = lanes.at(static_cast<int>(i));
    if (leads_row(lanes.count, lanes, one)) *lanes.count.row(one) = *storage.of(static_cast<int>(i)).total;
  }
};

}  // namespace detail

/// Takes three launches: which blocks are kept, positions and columns, and counts, which the other two read. Scratch:
/// an int for each block of every lane, and two for each lane.
template <kernel_backend Backend>
struct implementation<ops::drop_units_t, Backend> {
  static constexpr bool provided = true;

  /// Bytes of scratch for a cache with a block table or pages; 0 for others, which never call this verb.
  [[nodiscard]] static std::size_t scratch(cache const& in) {
    bool const blocks = in.where.kind == locating::block_table || in.where.kind == locating::csr_pages;
    return blocks ? detail::unit_storage::bytes(in) : 0;
  }

  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& table,
                  std::span<recorded_column const> columns, unit_list const& freed, std::int64_t* entries) {
    detail::check_scratch("drop_units", exec, scratch(in));
    detail::unit_storage const storage{reinterpret_cast<int*>(exec.scratch()), detail::unit_storage::most(in)};
    detail::kept_blocks_kernel const blocks{{keep, in.lanes},
                                            detail::table_of(in.where, table),
                                            freed,
                                            reinterpret_cast<std::uint64_t*>(entries),
                                            in.where.unit_tokens,
                                            storage};
    detail::launch_unless_fault(exec, launch_shape{in.lanes.size(), exec.threads().lane, blocks.shared_bytes()},
                                blocks);
    detail::permute_lanes(exec, detail::kept_block_lanes{storage, in.where.unit_tokens}, in, columns, false);
    detail::launch_each_unless_fault(exec, in.lanes.size(), detail::count_kept_blocks{in.lanes, storage});
  }
};

}  // namespace KVPOLICY_NAMESPACE
