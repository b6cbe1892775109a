// SPDX-License-Identifier: Apache-2.0
// Passes over lists of slots and their positions, for each instruction set.
#pragma once

#include <cstdint>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// How far ahead a pass prefetches slots from memory: one memory page, because hardware prefetchers stop at its end.
inline constexpr int slots_ahead = 1024;

/// The passes over a list of `count` slots. A mark is a byte: 1 for a set one, 0 for another.
struct slots_kernels {
  /// True if every number is at least 0, less than `end`, and not `excluded`.
  bool (*inside)(int const* numbers, int count, unsigned end, int excluded);
  /// True if no number is below 0, and each is above the one before it.
  bool (*ascends)(int const* numbers, int count);
  /// True if the map has each entry's slot at its position.
  bool (*matches_map)(int const* slot, int const* position, int count, int const* map);
  /// True if the byte of one of these units is set. Up to three bytes after it are read, too.
  bool (*any_set)(unsigned char const* bytes, int const* units, int count);
  /// Copies the slots of marked entries to `kept`, in order, and the `gone` others to `dropped`. Nothing is written
  /// after them. `kept` may be null, `slot`, or stand before it in one list. With `units`, which may be null, the
  /// bytes of the `gone` units are set, too.
  void (*partition)(unsigned char const* marks, int count, int gone, int const* slot, int* kept, int* dropped,
                    unsigned char* units);
  /// Copies the slots at the marked ones of `count` positions of a map to `list`, which has room for `room` of them,
  /// and writes `dead` at the other positions. Returns the number of copied slots.
  int (*collect_live)(unsigned char const* marks, int count, int dead, int* map, int room, int* list);
  /// Writes `dead` to the map at the positions of entries that are not marked.
  void (*redirect_to_dead)(unsigned char const* marks, int const* position, int count, int dead, int* map);
};

/// Marks units. They must be in the pool.
inline void mark_units(unsigned char* marks, int const* units, int count) {
  int e = 0;
  for (; e + 16 <= count; e += 16) {
    __builtin_prefetch(units + e + slots_ahead);
    for (int i = 0; i < 16; ++i) marks[units[e + i]] = 1;
  }
  for (; e < count; ++e) marks[units[e]] = 1;
}

/// The number of set marks.
inline std::int64_t count_set(unsigned char const* marks, std::int64_t count) {
  std::int64_t set = 0;
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    std::uint64_t some = 0;
    std::memcpy(&some, marks + i, sizeof some);
    set += static_cast<std::int64_t>(some * 0x0101010101010101u >> 56);
  }
  for (; i < count; ++i) set += marks[i];
  return set;
}

/// Bytes of scratch that may hold a mark for each unit of a pool: a row of ints. A larger pool has bits.
[[nodiscard]] inline std::size_t bytes_of_marks(cache const& in) {
  return sizeof(int) * (static_cast<std::size_t>(in.lanes.capacity) + 1);
}

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY slots
#include <kvpolicy/ops/host/simd/each_isa.hpp>
