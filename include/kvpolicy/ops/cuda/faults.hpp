// The error messages of recorded faults, and the checks of launch numbers and launches.
#pragma once

#include <kvpolicy/core/error.hpp>
#include <kvpolicy/ops/cuda/backend.hpp>
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

/// The parts of a fault's message. They are those of the host verbs, except for values that only the host can look up.
struct fault_text {
  char const* call;
  char const* name;
  char const* rule;
};

inline constexpr char const* counts_rule = "a lane holds 0 to `bound` entries, and its drafts are among them";

[[nodiscard]] inline fault_text text_of(fault kind) {
  switch (kind) {
    case fault::append_bound:
      return {"append", "tokens", "a lane holds at most `bound` entries"};
    case fault::append_position:
      return {"append", "position", "positions ascend"};
    case fault::append_drafts:
      return {"append", "in_flight", "drafts are committed or truncated first"};
    case fault::commit_drafts:
      return {"commit", "tokens", "fewer drafts are in flight"};
    case fault::stale_plan:
      return {"apply", "plan", "the cache holds other counts now: decide again"};
    case fault::used_plan:
      return {"apply", "plan",
              "the entries have changed since the decision, or it was made with another state: decide again"};
    case fault::ragged_lanes:
      return {"apply", "plan.keep",
              "the next token has one position in all lanes, and another lane keeps another number"};
    case fault::unequal_counts:
      return {"decide", "count", "lanes that decide together hold equally many entries"};
    case fault::append_column:
      return {"observe", "entries", "a lane holds fewer entries, or the count is negative"};
    case fault::span:
      return {"observe", "span", "it is not within the rows of its sequence"};
    case fault::decide_span:
      return {"decide", "span", "it is not within the rows of its sequence"};
    case fault::list_slot:
      return {"apply", "list", "a slot is out of the pool"};
    case fault::list_dead_slot:
      return {"apply", "list", "a live entry or a protected position is at the dead slot"};
    case fault::list_prefix:
      return {"apply", "plan.keep", "it drops a position of the protected prefix"};
    case fault::list_map:
      return {"apply", "map", "list and map differ at a live entry"};
    case fault::list_shared:
      return {"apply", "list", "two entries name one slot that is not shared"};
    case fault::relist_slot:
      return {"relist", "map", "a live entry's position is at the dead slot or out of the pool"};
    case fault::window_drafts:
      return {"promote", "in_flight", "drafts are committed or truncated first"};
    case fault::window_tokens:
      return {"promote", "tokens", "the window has fewer rows"};
    case fault::window_position:
      return {"ingest", "position", "positions ascend"};
    case fault::pages_supply:
      return {"promote", "pages", "the pool has only as many free pages as the number in parentheses"};
    case fault::pages_sentinel:
      return {"promote", "pages.free", "it is the sentinel, or no page of the pool"};
    case fault::pages_bound:
      return {"promote", "global.lanes.count", "a lane holds at most `bound` entries"};
    case fault::pages_position:
      return {"promote", "position", "positions ascend"};
    case fault::step_drafts:
      return {"step", "tokens", "the ring has fewer rows for drafts"};
    case fault::step_position:
      return {"step", "position", "positions ascend"};
    case fault::append_count:
      return {"append", "lanes.count", counts_rule};
    case fault::truncate_count:
      return {"truncate", "lanes.count", counts_rule};
    case fault::apply_count:
      return {"apply", "lanes.count", counts_rule};
    case fault::decide_count:
      return {"decide", "lanes.count", counts_rule};
    case fault::unequal_positions:
      return {"decide", "lanes.position", "lanes that decide together hold the same tokens"};
    case fault::truncate_order:
      return {"truncate", "position", "an eviction has put a later token among older ones: restore_order sorts them"};
    case fault::select_count:
      return {"select", "lanes.count", "layers that read the same pages hold equally many entries"};
    case fault::select_position:
      return {"select", "lanes.position", "layers that read the same pages hold the same tokens"};
    case fault::table_unit:
      return {"apply", "cache.where.table", "the pool has no such unit"};
    default:
      return {"check", "fault", "the device's memory was overwritten"};
  }
}

/// Throws the error that a recorded fault describes, if there is one.
inline void throw_fault(std::uint64_t word) {
  if (word == device_error::nothing) return;
  fault_text const text = text_of(static_cast<fault>(word >> 56));
  auto const index = static_cast<int>(word >> 32 & 0xFFFFFFu);
  expects(
      false, text.call, [&] { return text.name + std::string(" (") + std::to_string(index) + ")"; },
      static_cast<std::int32_t>(word & 0xFFFFFFFFu), text.rule);
}

}  // namespace KVPOLICY_NAMESPACE::detail
