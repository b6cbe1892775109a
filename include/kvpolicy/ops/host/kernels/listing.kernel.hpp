// SPDX-License-Identifier: Apache-2.0
// Lists of ordinals: kernels/listing.hpp says what they promise. All of them list the set bits of words of 32 entries.

/// Lists the entries from e on whose bits are set, after the `at` ordinals that are listed, and returns how many are
/// listed then. Nothing is written from the place `end` of the list on. The kind is a parameter so that a compiler does
/// not look for operations that portable code lacks.
template <class Kind>
KVPOLICY_OP int list_word(Kind kind, std::uint32_t word, int e, int at, int end, int* to) {
  if constexpr (has_integers) {
    auto ordinals = iota(kind, e);
    for (int i = 0; i < 32; i += width, word >>= width) {
      unsigned const here = word & ((1u << width) - 1);
      int const more = __builtin_popcount(here);
      compress_store(ordinals, here, more, at + width <= end, to + at);
      at += more;
      ordinals = ordinals + splat(kind, width);
    }
  } else {
    for (; word != 0; word &= word - 1) to[at++] = e + __builtin_ctz(word);
  }
  return at;
}

/// The bits of the rows from r on whose number is at least `least`. Rows after the last one have none.
KVPOLICY_OP std::uint32_t counting_rows(int const* numbers, int count, int least, int r) {
  if (r + 32 <= count) return ~sign_bits(numbers + r, least);
  int rest[32];
  for (int i = 0; i < 32; ++i) rest[i] = r + i < count ? numbers[r + i] : least - 1;
  return ~sign_bits(rest, least);
}

/// Rows are counted first, so that the last vector that may be stored as a whole is known.
inline int list_rows(int const* numbers, int count, int least, int* to) {
  int all = 0, at = 0;
  for (int r = 0; r < count; r += 32) all += __builtin_popcount(counting_rows(numbers, count, least, r));
  for (int r = 0; r < count; r += 32)
    at = list_word(vector_tag{}, counting_rows(numbers, count, least, r), r, at, all, to);
  return at;
}

/// The marks may be the last bytes of `to`. After reading n marks at most n ordinals are written, and these end before
/// the next mark.
inline int list_marked(unsigned char const* marks, int count, int* to) {
  int at = 0, e = 0;
  for (; e + 32 <= count; e += 32) at = list_word(vector_tag{}, nonzero_bits(marks + e), e, at, count, to);
  if (e == count) return at;
  zero_padded<32> const rest(reinterpret_cast<std::byte const*>(marks + e), count - e);
  return list_word(vector_tag{}, nonzero_bits(reinterpret_cast<unsigned char const*>(rest.begin())), e, at, count, to);
}

inline void list_bits(std::uint32_t const* bits, int count, int listed, int* to) {
  int at = 0;
  for (int e = 0; e < count && at < listed; e += 32) at = list_word(vector_tag{}, bits[e / 32], e, at, listed, to);
}

inline std::uint32_t signs(int const* numbers) { return sign_bits(numbers, 0); }

inline constexpr listing_kernels listing{list_rows, list_bits, signs, list_marked};
