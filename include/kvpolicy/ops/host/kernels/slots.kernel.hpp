// SPDX-License-Identifier: Apache-2.0
// Passes over lists of slots: kernels/slots.hpp says what they promise.

/// True if the test holds for any entry.
template <class Test>
KVPOLICY_OP bool any_of(int count, Test const& test) {
  int e = 0;
  bool found = false;
  if constexpr (has_integers) {
    if (count >= width) {
      auto all = test(vector_tag{}, 0);
      for (e = width; e + width <= count; e += width) all = all | test(vector_tag{}, e);
      found = any(all);
    }
  }
  one_mask rest{0};
  for (; e < count; ++e) rest = rest | test(scalar_tag{}, e);
  return found || any(rest);
}

inline bool inside(int const* numbers, int count, unsigned end, int excluded) {
  return !any_of(count, [&](auto kind, int e) KVPOLICY_INLINED {
    prefetch(kind, numbers + e + slots_ahead);
    auto const here = load(kind, numbers + e);
    return (!less_unsigned(here, splat(kind, static_cast<int>(end)))) | (here == splat(kind, excluded));
  });
}

inline bool ascends(int const* numbers, int count) {
  if (count > 0 && numbers[0] < 0) return false;
  return !any_of(count - 1, [&](auto kind, int e) KVPOLICY_INLINED {
    prefetch(kind, numbers + e + slots_ahead);
    return !(load(kind, numbers + e + 1) > load(kind, numbers + e));
  });
}

/// True if positions count up. A map then has what belongs to them side by side.
template <class Kind, class Ints>
KVPOLICY_OP bool is_run(Kind kind, Ints positions, int first) {
  return !any(!(positions == iota(kind, first)));
}

inline bool matches_map(int const* slot, int const* position, int count, int const* map) {
  return !any_of(count, [&](auto kind, int e) KVPOLICY_INLINED {
    prefetch(kind, position + e + slots_ahead);
    prefetch(kind, map + position[e] + slots_ahead);
    auto const at = load(kind, position + e);
    auto const mapped = is_run(kind, at, position[e]) ? load(kind, map + position[e]) : gather(map, at);
    return !(load(kind, slot + e) == mapped);
  });
}

inline bool any_set(unsigned char const* bytes, int const* units, int count) {
  return any_of(count, [&](auto kind, int e) KVPOLICY_INLINED {
    prefetch(kind, units + e + slots_ahead);
    return gather_nonzero(bytes, load(kind, units + e));
  });
}

/// Slots are packed to the front of `kept`, which may be the list: a whole vector there overwrites only slots that were
/// read.
inline void partition(unsigned char const* marks, int count, int gone, int const* slot, int* kept, int* dropped,
                      unsigned char* units) {
  int stay = 0;
  for_each_vector<has_integers>(0, count, [&](auto kind, int e) KVPOLICY_INLINED {
    constexpr int lanes = width_of(kind);
    prefetch(kind, slot + e + 2 * slots_ahead);
    prefetch(kind, dropped + (e - stay) + 2 * slots_ahead);
    auto const here = load(kind, slot + e);
    auto const stays = nonzero(kind, marks + e);
    int const more = count_bits(kind, bits_of(stays));
    if (kept != nullptr) compress_store(here, bits_of(stays), more, stay + lanes <= count - gone, kept + stay);
    compress_store(here, bits_of(!stays), lanes - more, e - stay + lanes <= gone, dropped + (e - stay));
    stay += more;
  });
  if (units != nullptr) mark_units(units, dropped, gone);
}

inline int collect_live(unsigned char const* marks, int count, int dead, int* map, int room, int* list) {
  int taken = 0;
  for_each_vector<has_integers>(0, count, [&](auto kind, int p) KVPOLICY_INLINED {
    prefetch(kind, map + p + 2 * slots_ahead);
    prefetch(kind, list + taken + slots_ahead);
    auto const here = load(kind, map + p);
    auto const live = nonzero(kind, marks + p);
    int const more = count_bits(kind, bits_of(live));
    compress_store(here, bits_of(live), more, taken + width_of(kind) <= room, list + taken);
    store(choose(live, here, splat(kind, dead)), map + p);
    taken += more;
  });
  return taken;
}

inline void redirect_to_dead(unsigned char const* marks, int const* position, int count, int dead, int* map) {
  for_each_vector<has_integers>(0, count, [&](auto kind, int e) KVPOLICY_INLINED {
    prefetch(kind, position + e + 2 * slots_ahead);
    prefetch(kind, map + position[e] + 2 * slots_ahead);
    if (is_run(kind, load(kind, position + e), position[e])) {
      int* const at = map + position[e];
      store(choose(nonzero(kind, marks + e), load(kind, at), splat(kind, dead)), at);
    } else {
      for (int i = e; i < e + width_of(kind); ++i) {
        if (marks[i] == 0) map[position[i]] = dead;
      }
    }
  });
}

inline constexpr slots_kernels slots{inside, ascends, matches_map, any_set, partition, collect_live, redirect_to_dead};
