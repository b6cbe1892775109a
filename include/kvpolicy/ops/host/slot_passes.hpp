// Passes over lists of slots and their positions, for any processor.
#pragma once

#include <cstdint>
#include <cstring>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// How far ahead a pass prefetches slots from memory: one memory page, because hardware prefetchers stop at its end.
inline constexpr int slots_ahead = 1024;

/// Marks units. They must be in the pool.
inline void mark_units(unsigned char* marks, int const* units, int count) {
  int e = 0;
  for (; e + 16 <= count; e += 16) {
    __builtin_prefetch(units + e + slots_ahead);
    for (int i = 0; i < 16; ++i) marks[units[e + i]] = 1;
  }
  for (; e < count; ++e) marks[units[e]] = 1;
}

/// The passes over a list of `count` slots. A mark is a byte: 1 for a set one, 0 for another.
struct slot_kernels {
  /// True if every number is at least 0, less than `end`, and not `excluded`.
  bool (*inside)(int const* numbers, int count, unsigned end, int excluded);
  /// True if no number is below 0, and each is above the one before it.
  bool (*ascends)(int const* numbers, int count);
  /// True if the map has each entry's slot at its position.
  bool (*as_mapped)(int const* slot, int const* position, int count, int const* map);
  /// The number of set marks.
  std::int64_t (*count_set)(unsigned char const* marks, std::int64_t count);
  /// True if the byte of one of these units is set. Up to three bytes behind it are read, too.
  bool (*any_set)(unsigned char const* bytes, int const* units, int count);
  /// Copies the slots of marked entries to `kept`, in order, and the `gone` others to `dropped`. Nothing is written
  /// behind them. `kept` may be null, `slot`, or stand before it in one list. With `units`, which may be null, the
  /// bytes of the `gone` units are set, too.
  void (*split)(unsigned char const* marks, int count, int gone, int const* slot, int* kept, int* dropped,
                unsigned char* units);
  /// Copies the slots at the marked ones of `count` positions of a map to `list`, which has room for `room` of them,
  /// and writes `dead` at the other positions. Returns the number of copied slots.
  int (*take)(unsigned char const* marks, int count, int dead, int* map, int room, int* list);
  /// Writes `dead` to the map at the positions of entries that are not marked.
  void (*redirect)(unsigned char const* marks, int const* position, int count, int dead, int* map);
};

/// Code for any compiler and processor. There is no branch for an entry.
struct portable_slots {
  KVPOLICY_VECTORIZED static bool inside(int const* numbers, int count, unsigned end, int excluded) {
    int wrong = 0;
    for (int e = 0; e < count; ++e) {
      wrong |= (static_cast<unsigned>(numbers[e]) >= end ? 1 : 0) | (numbers[e] == excluded ? 1 : 0);
    }
    return wrong == 0;
  }
  KVPOLICY_VECTORIZED static bool ascends(int const* numbers, int count) {
    int wrong = count > 0 && numbers[0] < 0 ? 1 : 0;
    for (int e = 1; e < count; ++e) wrong |= numbers[e] <= numbers[e - 1] ? 1 : 0;
    return wrong == 0;
  }
  static bool as_mapped(int const* slot, int const* position, int count, int const* map) {
    int wrong = 0;
    for (int e = 0; e < count; ++e) wrong |= slot[e] ^ map[position[e]];
    return wrong == 0;
  }
  static std::int64_t count_set(unsigned char const* marks, std::int64_t count) {
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
  static bool any_set(unsigned char const* bytes, int const* units, int count) {
    unsigned set = 0;
    for (int i = 0; i < count; ++i) set |= bytes[units[i]];
    return set != 0;
  }
  static void split(unsigned char const* marks, int count, int gone, int const* slot, int* kept, int* dropped,
                    unsigned char* units) {
    int stay = 0;
    int left = 0;
    for (int e = 0; e < count; ++e) {
      int const one = slot[e];
      int const stays = marks[e];
      if (kept != nullptr && stay < count - gone) kept[stay] = one;
      if (left < gone) dropped[left] = one;
      stay += stays;
      left += 1 - stays;
    }
    if (units != nullptr) mark_units(units, dropped, gone);
  }
  static int take(unsigned char const* marks, int count, int dead, int* map, int room, int* list) {
    int taken = 0;
    for (int p = 0; p < count; ++p) {
      int const one = map[p];
      if (taken < room) list[taken] = one;
      taken += marks[p];
      map[p] = marks[p] != 0 ? one : dead;
    }
    return taken;
  }
  static void redirect(unsigned char const* marks, int const* position, int count, int dead, int* map) {
    for (int e = 0; e < count; ++e) {
      int& at = map[position[e]];
      at = marks[e] != 0 ? at : dead;
    }
  }
  static constexpr slot_kernels kernels{inside, ascends, as_mapped, count_set, any_set, split, take, redirect};
};

}  // namespace KVPOLICY_NAMESPACE::detail
