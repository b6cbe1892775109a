// Lists of ordinals: kernels/listing.hpp says what they promise.

/// Lists the entries that `which(vector, e)` selects, a mask of the entries from e on. Where `has_room(end, e)` is true
/// a whole vector may be written, up to the place `end` of the list.
template <class Which, class HasRoom>
[[gnu::always_inline]] inline int list_where(int count, int* to, Which const& which, HasRoom const& has_room) {
  int listed = 0;
  for_each_vector(count, [&](auto some, int e) KVPOLICY_INLINED {
    auto const here = which(some, e);
    int const more = number_of(here);
    pack(counting_as(some, e), here, more, has_room(listed + lanes_of(some), e), to + listed);
    listed += more;
  });
  return listed;
}

inline int list_rows(int const* position, int count, int* to) {
  return list_where(
      count, to, [&](auto some, int e) KVPOLICY_INLINED { return !(same_as(some, 0) > load_as(some, position + e)); },
      [](int, int) KVPOLICY_INLINED { return false; });
}

/// A whole vector is written where all of its places belong to entries that were read before.
inline int list_marked(unsigned char const* marks, int count, int* to) {
  return list_where(
      count, to, [&](auto some, int e) KVPOLICY_INLINED { return marked_as(some, marks + e); },
      [](int after, int e) KVPOLICY_INLINED { return after <= e; });
}

/// `Vector` is `ints`.
template <class Vector>
[[gnu::always_inline]] inline void list_bits_by(Vector kind, std::uint32_t const* bits, int count, int listed,
                                                int* to) {
  int at = 0;
  for (int e = 0; e < count && at < listed; e += 32) {
    std::uint32_t some = bits[e / 32];
    if constexpr (has_integers) {
      for (int i = 0; i < 32; i += width, some >>= width) {
        unsigned const here = some & ((1u << width) - 1);
        int const more = __builtin_popcount(here);
        pack_bits(counting_as(kind, e + i), here, more, at + width <= listed, to + at);
        at += more;
      }
    } else {
      for (; some != 0; some &= some - 1) to[at++] = e + __builtin_ctz(some);
    }
  }
}

inline void list_bits(std::uint32_t const* bits, int count, int listed, int* to) {
  list_bits_by(ints{}, bits, count, listed, to);
}

inline constexpr listing_kernels listing{list_rows, list_bits, list_marked};
