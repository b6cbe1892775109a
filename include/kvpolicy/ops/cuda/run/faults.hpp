// SPDX-License-Identifier: Apache-2.0
// The error messages of recorded faults, and the checks of launch numbers and launches.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/cuda/run/backend.hpp>
#include <string>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// Throws `invalid_argument` unless every kernel can be launched with these numbers.
inline void check_launch_config(char const* call, launch_config const& numbers, int most_shared) {
  for (auto const& [name, count] :
       {std::pair{"entries_of_a_block", numbers.entries_of_a_block}, std::pair{"processors", numbers.processors},
        std::pair{"blocks_of_a_processor", numbers.blocks_of_a_processor},
        std::pair{"entries_of_a_selection", numbers.entries_of_a_selection}}) {
    expects(count >= 1, call, name, count, "there is at least one");
  }
  expects(numbers.overlapped_launches == 0 || numbers.overlapped_launches == 1, call, "overlapped_launches",
          numbers.overlapped_launches, "it is 0 or 1");
  expects(numbers.shared_bytes >= 48 * 1024 && numbers.shared_bytes <= most_shared, call, "shared_bytes",
          numbers.shared_bytes, [&] { return "a block has 49152 to " + std::to_string(most_shared); });
}

/// The limits of a device's launches.
struct launch_limits {
  int cluster;         ///< blocks of a cluster
  std::size_t shared;  ///< bytes of shared memory of a block
};

/// Throws `invalid_argument` unless the device can launch such a grid.
template <class Threads>
void check_launch(launch_shape<Threads> const& shape, launch_limits const& most) {
  bool const is_power = shape.cluster > 0 && (shape.cluster & (shape.cluster - 1)) == 0;
  expects(is_power && shape.cluster <= most.cluster, "launch", "shape.cluster", shape.cluster,
          [&] { return "a cluster has a power of two of blocks, at most " + std::to_string(most.cluster); });
  expects(shape.blocks % shape.cluster == 0, "launch", "shape.blocks", shape.blocks,
          [&] { return "there are whole clusters of " + std::to_string(shape.cluster) + " blocks"; });
  expects(shape.shared <= most.shared, "launch", "shape.shared", shape.shared,
          [&] { return "a block has at most " + std::to_string(most.shared) + " bytes"; });
}

inline constexpr char const* counts_rule = "a lane holds 0 to `capacity` entries, and its drafts are among them";

/// A fault, and the parts of its message. They are those of the host verbs, except for values that only the host can
/// look up.
struct told_fault {
  fault kind;
  char const* call;
  char const* name;
  char const* rule;
};
inline constexpr told_fault told_faults[] = {
    {fault::append_bound, "append", "tokens", "a lane holds at most `capacity` entries"},
    {fault::append_position, "append", "position", "positions ascend"},
    {fault::append_drafts, "append", "in_flight", "drafts are committed or truncated first"},
    {fault::commit_drafts, "commit", "tokens", "fewer drafts are in flight"},
    {fault::stale_plan, "apply", "plan", "the cache holds other counts now: decide again"},
    {fault::used_plan, "apply", "plan",
     "the entries have changed since the decision, or it was made with another state: decide again"},
    {fault::ragged_lanes, "apply", "plan.keep",
     "the next token has one position in all lanes, and another lane keeps another number"},
    {fault::unequal_counts, "decide", "count", "lanes that decide together hold equally many entries"},
    {fault::append_column, "observe", "entries", "a lane holds fewer entries, or the count is negative"},
    {fault::span, "observe", "span", "it is not within the rows of its sequence"},
    {fault::decide_span, "decide", "span", "it is not within the rows of its sequence"},
    {fault::list_slot, "apply", "list", "a slot is out of the pool"},
    {fault::list_dead_slot, "apply", "list", "a live entry or a protected position is at the dead slot"},
    {fault::list_prefix, "apply", "plan.keep", "it drops a position of the protected prefix"},
    {fault::list_map, "apply", "map", "list and map differ at a live entry"},
    {fault::list_shared, "apply", "list", "two entries name one slot that is not shared"},
    {fault::relist_slot, "relist", "map", "a live entry's position is at the dead slot or out of the pool"},
    {fault::window_drafts, "promote", "in_flight", "drafts are committed or truncated first"},
    {fault::window_tokens, "promote", "tokens", "the window has fewer rows"},
    {fault::window_position, "ingest", "position", "positions ascend"},
    {fault::pages_supply, "promote", "pages", "the pool has only as many free pages as the number in parentheses"},
    {fault::pages_sentinel, "promote", "pages.free", "it is the sentinel, or no page of the pool"},
    {fault::pages_bound, "promote", "pages.lanes.count", "a lane holds at most `capacity` entries"},
    {fault::pages_position, "promote", "position", "positions ascend"},
    {fault::step_drafts, "step", "tokens", "the ring has fewer rows for drafts"},
    {fault::step_position, "step", "position", "positions ascend"},
    {fault::append_count, "append", "lanes.count", counts_rule},
    {fault::truncate_count, "truncate", "lanes.count", counts_rule},
    {fault::apply_count, "apply", "lanes.count", counts_rule},
    {fault::decide_count, "decide", "lanes.count", counts_rule},
    {fault::unequal_positions, "decide", "lanes.position", "lanes that decide together hold the same tokens"},
    {fault::truncate_order, "truncate", "position",
     "an eviction has put a later token among older ones: restore_order sorts them"},
    {fault::select_count, "select", "lanes.count", "layers that read the same pages hold equally many entries"},
    {fault::select_position, "select", "lanes.position", "layers that read the same pages hold the same tokens"},
    {fault::table_unit, "apply", "cache.where.table", "the pool has no such unit"},
    {fault::gram_matrix, "leverage", "rows.channels",
     "even with 100000 times the jitter their Gram matrix has no Cholesky factor"},
    {fault::mass_rows, "compute_attention_mass", "queries.rows", "lanes that decide together have equally many"},
};

/// Throws the error that a recorded fault describes, if there is one.
inline void throw_fault(std::uint64_t word) {
  if (word == device_error::nothing) return;
  told_fault text{fault::none, "check", "fault", "the device's memory was overwritten"};
  for (told_fault const& each : told_faults) {
    if (each.kind == static_cast<fault>(word >> 56)) text = each;
  }
  auto const index = static_cast<int>(word >> 32 & 0xFFFFFFu);
  expects(
      false, text.call, [&] { return text.name + std::string(" (") + std::to_string(index) + ")"; },
      static_cast<std::int32_t>(word & 0xFFFFFFFFu), text.rule);
}

}  // namespace KVPOLICY_NAMESPACE::detail
