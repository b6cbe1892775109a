// SPDX-License-Identifier: Apache-2.0
// Which units nobody uses any more after a call, for kernels: those that its rows give up, less those that a row of the
// call or of another slot names.
#pragma once

#include <kvpolicy/ops/cuda/lists/list_checks.hpp>
#include <kvpolicy/ops/cuda/lists/rows.hpp>
#include <kvpolicy/ops/units.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// Marks in scratch, one for each unit: 0 if a row uses it, else the lowest number of a place that gives it up.
struct unit_users {
  unit_claims claims;  ///< null: each row has a pool of its own, or nobody asks
  row_owners rows;     ///< of the call
  row_owners all;      ///< of every slot that the table knows
  locator where;       ///< of the call
  locator where_of_all;
  int most;  ///< units of a row

  /// Rows of the slots that the table knows, if any of them is not of the call.
  [[nodiscard]] KVPOLICY_HD int others() const {
    return claims.first == nullptr || all.lanes.sequences == rows.lanes.sequences ? 0 : all.count();
  }
  /// The number of a place in a row of the call.
  [[nodiscard]] KVPOLICY_HD unsigned number(lane owner, int place) const {
    return static_cast<unsigned>(rows.row(owner)) * static_cast<unsigned>(most) + static_cast<unsigned>(place) + 1;
  }

  /// Marks the units of a row of the call, by a block.
  template <class Block>
  KVPOLICY_HD void mark(Block& block, lane owner, row_units has, int const* units) const {
    unsigned* const first = claims.of(owner);
    for (int i = block.thread(); first != nullptr && i < has.kept + has.gone; i += block.threads()) {
      if (claims.in_pool(units[i])) block.atomic_min(first + units[i], i < has.kept ? 0u : number(owner, i));
    }
  }
  /// Marks the units of the i-th row of all slots, unless the call has it.
  template <class Block>
  KVPOLICY_HD void mark_other(Block& block, int i, collective_storage* storage) const {
    lane const owner = all.at(i);
    kvpolicy::lanes const& batch = rows.lanes;
    for (int s = batch.sequence_begin; s < batch.sequence_end(); ++s) {
      if (slot_of(batch.slots, s) == owner.sequence) return;
    }
    int count = 0;
    for (int j = block.thread(); j < all.sharers(); j += block.threads()) {
      count = max_op{}(count, *all.lanes.count.row(all.sharer(owner, j)));
    }
    count = min_op{}(block.reduce(storage, count, max_op{}), all.lanes.capacity);
    unsigned* const first = claims.of(owner);
    int const* const units = where_of_all.list(owner);
    for (int u = block.thread(); u * where.unit_tokens < count; u += block.threads()) {
      if (claims.in_pool(units[u])) block.atomic_min(first + units[u], 0u);
    }
  }
  /// True if a unit that a place gave up is nobody's now, and no place before it gave it up, too.
  [[nodiscard]] KVPOLICY_HD bool falls_free(lane owner, int place, int unit) const {
    unsigned const* const first = claims.of(owner);
    return first == nullptr || !claims.in_pool(unit) || first[unit] == number(owner, place);
  }
};

/// The most units of a lane.
[[nodiscard]] inline int most_units(cache const& in) {
  return (in.lanes.capacity + in.where.unit_tokens - 1) / in.where.unit_tokens;
}

/// The bytes of the marks; 0 if each row has a pool of its own, so that no unit has two users.
[[nodiscard]] inline std::size_t users_bytes(cache const& in) {
  if (!names_units(in.where)) return 0;
  int const rows = owners_of(rows_of(in.where, in.where.table), in.lanes).count();
  int const pools = pools_of(in, in.where.table).count();
  if (of_all_slots(in).lanes.sequences == 1 && rows == pools) return 0;
  return static_cast<std::size_t>(in.where.units) * static_cast<std::size_t>(pools) * sizeof(unsigned);
}

/// `memory` has users_bytes(in), or is null.
[[nodiscard]] inline unit_users users_of(cache const& in, std::byte* memory) {
  row_owners const rows = owners_of(rows_of(in.where, in.where.table), in.lanes);
  cache const every = of_all_slots(in);
  row_owners const pools = pools_of(in, in.where.table);
  int const most = most_units(in);
  expects(std::int64_t{rows.count()} * most < std::int64_t{std::numeric_limits<unsigned>::max()}, "apply",
          "lanes.capacity", in.lanes.capacity, "rows of a table have fewer than 2^32 units, in all");
  row_owners all = rows;
  all.lanes = every.lanes;
  auto* const marks = users_bytes(in) > 0 ? reinterpret_cast<unsigned*>(memory) : nullptr;
  return {{marks, in.where.units, pools, 0, pools.count()}, rows, all, in.where, every.where, most};
}

}  // namespace KVPOLICY_NAMESPACE::detail
