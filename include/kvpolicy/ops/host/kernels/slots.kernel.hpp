// Passes over lists of slots: kernels/slots.hpp says what they promise.

/// True if the test holds for any entry.
template <class Test>
KVPOLICY_OP bool any_of(int count, Test const& test) {
  int e = 0;
  bool found = false;
  if constexpr (has_integers) {
    if (count >= width) {
      auto all = test(ints{}, 0);
      for (e = width; e + width <= count; e += width) all = all | test(ints{}, e);
      found = any(all);
    }
  }
  one_mask rest{0};
  for (; e < count; ++e) rest = rest | test(one_int{}, e);
  return found || any(rest);
}

inline bool inside(int const* numbers, int count, unsigned end, int excluded) {
  return !any_of(count, [&](auto some, int e) KVPOLICY_INLINED {
    fetch(some, numbers + e + slots_ahead);
    auto const here = load_as(some, numbers + e);
    return (!below(here, same_as(some, static_cast<int>(end)))) | (here == same_as(some, excluded));
  });
}

inline bool ascends(int const* numbers, int count) {
  if (count > 0 && numbers[0] < 0) return false;
  return !any_of(count - 1, [&](auto some, int e) KVPOLICY_INLINED {
    fetch(some, numbers + e + slots_ahead);
    return !(load_as(some, numbers + e + 1) > load_as(some, numbers + e));
  });
}

/// True if positions count up. A map then has what belongs to them side by side.
template <class Ints>
KVPOLICY_OP bool is_run(Ints positions, int first) {
  return !any(!(positions == counting_as(positions, first)));
}

inline bool as_mapped(int const* slot, int const* position, int count, int const* map) {
  return !any_of(count, [&](auto some, int e) KVPOLICY_INLINED {
    fetch(some, position + e + slots_ahead);
    fetch(some, map + position[e] + slots_ahead);
    auto const at = load_as(some, position + e);
    auto const mapped = is_run(at, position[e]) ? load_as(some, map + position[e]) : gather(map, at);
    return !(load_as(some, slot + e) == mapped);
  });
}

inline bool any_set(unsigned char const* bytes, int const* units, int count) {
  return any_of(count, [&](auto some, int e) KVPOLICY_INLINED {
    fetch(some, units + e + slots_ahead);
    return gather_set(bytes, load_as(some, units + e));
  });
}

/// Slots are packed to the front of `kept`, which may be the list: a whole vector there overwrites only slots that were
/// read.
inline void split(unsigned char const* marks, int count, int gone, int const* slot, int* kept, int* dropped,
                  unsigned char* units) {
  int stay = 0;
  for_each_vector(count, [&](auto some, int e) KVPOLICY_INLINED {
    constexpr int lanes = lanes_of(decltype(some){});
    fetch(some, slot + e + 2 * slots_ahead);
    fetch(some, dropped + (e - stay) + 2 * slots_ahead);
    auto const here = load_as(some, slot + e);
    auto const stays = marked_as(some, marks + e);
    int const more = number_of(stays);
    if (kept != nullptr) pack(here, stays, more, stay + lanes <= count - gone, kept + stay);
    pack(here, !stays, lanes - more, e - stay + lanes <= gone, dropped + (e - stay));
    stay += more;
  });
  if (units != nullptr) mark_units(units, dropped, gone);
}

inline int take(unsigned char const* marks, int count, int dead, int* map, int room, int* list) {
  int taken = 0;
  for_each_vector(count, [&](auto some, int p) KVPOLICY_INLINED {
    fetch(some, map + p + 2 * slots_ahead);
    fetch(some, list + taken + slots_ahead);
    auto const here = load_as(some, map + p);
    auto const live = marked_as(some, marks + p);
    int const more = number_of(live);
    pack(here, live, more, taken + lanes_of(decltype(some){}) <= room, list + taken);
    store(choose(live, here, same_as(some, dead)), map + p);
    taken += more;
  });
  return taken;
}

inline void redirect(unsigned char const* marks, int const* position, int count, int dead, int* map) {
  for_each_vector(count, [&](auto some, int e) KVPOLICY_INLINED {
    fetch(some, position + e + 2 * slots_ahead);
    fetch(some, map + position[e] + 2 * slots_ahead);
    if (is_run(load_as(some, position + e), position[e])) {
      int* const at = map + position[e];
      store(choose(marked_as(some, marks + e), load_as(some, at), same_as(some, dead)), at);
    } else {
      for (int i = e; i < e + lanes_of(decltype(some){}); ++i) {
        if (marks[i] == 0) map[position[i]] = dead;
      }
    }
  });
}

inline constexpr slots_kernels slots{inside, ascends, as_mapped, any_set, split, take, redirect};
