// SPDX-License-Identifier: Apache-2.0
// What an engine holds in memory, part by part, so that two engines can be compared on equal memory.
#pragma once

#include <array>
#include <cstdint>

namespace serving {

/// Bytes. The model's weights, the activations of a forward and the texts of requests are not counted: they are the
/// same for every policy.
struct held_memory {
  std::int64_t rows = 0;      ///< keys and values: all blocks of the pool, and the dead one
  std::int64_t numbers = 0;   ///< the numbers of a gate that are kept beside the rows
  std::int64_t counters = 0;  ///< references and free lists of blocks, the tree of the prefix cache at its largest
  std::int64_t tables = 0;    ///< counts, positions and blocks of all slots
  std::int64_t state = 0;     ///< what recorders keep, of all slots
  std::int64_t plans = 0;
  std::int64_t scratch = 0;  ///< of all workers of the executor
  std::int64_t queries = 0;  ///< the query rows of a forward that a policy reads
  std::int64_t gate = 0;     ///< its weights, its scratch, and its numbers of a forward
  std::int64_t swapped = 0;  ///< room for sequences that are swapped out

  [[nodiscard]] std::int64_t total() const;
};

/// A part of the memory, and its names for people and for programs.
struct memory_part {
  char const* title;
  char const* name;
  std::int64_t held_memory::* bytes;
};

inline constexpr std::array<memory_part, 10> memory_parts = {
    {{"keys and values, in blocks", "rows", &held_memory::rows},
     {"a gate's numbers beside them", "numbers", &held_memory::numbers},
     {"blocks and prefix cache", "counters", &held_memory::counters},
     {"tables of the slots", "tables", &held_memory::tables},
     {"recorders' state", "state", &held_memory::state},
     {"plans", "plans", &held_memory::plans},
     {"scratch of the executor", "scratch", &held_memory::scratch},
     {"query rows of a forward", "queries", &held_memory::queries},
     {"the gate", "gate", &held_memory::gate},
     {"room for swapped sequences", "swapped", &held_memory::swapped}}};

inline std::int64_t held_memory::total() const {
  std::int64_t all = 0;
  for (memory_part const& each : memory_parts) all += this->*each.bytes;
  return all;
}

}  // namespace serving
