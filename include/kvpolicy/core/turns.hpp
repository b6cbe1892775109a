// SPDX-License-Identifier: Apache-2.0
// Turns: a large batch is decided about in parts, so that the memory of a plan does not grow with the batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/lanes.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// How much a plan decides about at once. A larger batch is decided about in turns, with the same result.
struct at_once {
  std::int64_t entries = 0;  ///< entries of all segments together, `capacity` for each segment; 0: no limit
  int sequences = 0;         ///< sequences; 0: no limit
};

namespace detail {

/// The largest turn of a batch: so many sequences, of so many layers each.
struct turn_size {
  int sequences = 0;
  int layers = 0;
};

/// The largest turn that fits into `limit`. Lanes that decide together, or share a budget, are in one turn.
///
/// - throws: `invalid_argument` if not even the smallest turn fits.
[[nodiscard]] inline turn_size largest_turn(char const* call, lanes const& batch, granularity decides,
                                            budget_scope scope, at_once const& limit) {
  expects(limit.entries >= 0, call, "at_once.entries", limit.entries, "a count cannot be negative");
  expects(limit.sequences >= 0, call, "at_once.sequences", limit.sequences, "a count cannot be negative");
  turn_size made{batch.sequences, batch.layers()};
  if (limit.sequences > 0) made.sequences = std::min(made.sequences, limit.sequences);
  if (limit.entries == 0) return made;
  lanes one = batch;
  one.sequences = 1;
  std::int64_t const of_sequence = std::int64_t{segments(one, decides)} * batch.capacity;
  if (of_sequence <= limit.entries) {
    made.sequences = static_cast<int>(std::min<std::int64_t>(made.sequences, limit.entries / of_sequence));
    return made;
  }
  bool const whole = decides == granularity::sequence || scope == budget_scope::sequence;
  std::int64_t const least = whole ? of_sequence : of_sequence / batch.layers();
  expects(least <= limit.entries, call, "at_once.entries", limit.entries, [&] {
    return std::string(whole ? "one sequence" : "one layer of a sequence") + " has " + std::to_string(least) +
           " entries that are decided about together";
  });
  return {1, static_cast<int>(limit.entries / least)};
}

/// The lanes of a batch, cut down to the size of a turn. They say how much memory a turn needs.
[[nodiscard]] inline lanes first_turn(lanes const& batch, turn_size const& most) {
  lanes const some =
      batch.sequences_only(batch.sequence_begin, batch.sequence_begin + std::min(most.sequences, batch.sequences));
  return some.layers_only(batch.layer_begin, batch.layer_begin + std::min(most.layers, batch.layers()));
}

/// Calls visit(lanes) for each turn of a batch, in the order of lanes.
template <class Visit>
void for_each_turn(lanes const& batch, turn_size const& most, Visit const& visit) {
  for (int s = batch.sequence_begin; s < batch.sequence_end(); s += most.sequences) {
    lanes const some = batch.sequences_only(s, std::min(s + most.sequences, batch.sequence_end()));
    for (int l = batch.layer_begin; l < batch.layer_end; l += most.layers) {
      visit(some.layers_only(l, std::min(l + most.layers, batch.layer_end)));
    }
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
