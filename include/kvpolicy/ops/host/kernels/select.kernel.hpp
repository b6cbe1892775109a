// SPDX-License-Identifier: Apache-2.0
// Passes over scores: kernels/select.hpp says what they promise.

inline bracket_counts bracket(float const* scores, int count, float low, float high, std::uint32_t* inside) {
  bracket_counts found{0, 0, 0};
  bool const copies = low != high;
  for_each_vector<has_integers>(0, count, [&](auto kind, int e) KVPOLICY_INLINED {
    prefetch(kind, scores + e + floats_ahead);
    auto const some = comparable(load(kind, scores + e));
    unsigned const above = bits_of(comparable(splat(kind, high)) < some);
    unsigned const within = bits_of(comparable(splat(kind, low)) <= some) & ~above;
    int const more = count_bits(kind, within);
    if (copies) compress_store(bit_cast_ints(some), within, more, true, reinterpret_cast<int*>(inside + found.inside));
    found.above += count_bits(kind, above);
    found.inside += more;
    found.nan += count_bits(kind, bits_of(either_is_nan(some, some)));
  });
  return found;
}

/// Returns the lowest `ties` of the set bits, and reduces `ties` by their number.
template <class Vector>
KVPOLICY_OP unsigned take_ties(Vector kind, unsigned equal, int& ties) {
  int const there = count_bits(kind, equal);
  if (there <= ties) {
    ties -= there;
    return equal;
  }
  unsigned some = 0;
  for (; ties > 0; --ties, equal &= equal - 1) some |= equal & (0u - equal);
  return some;
}

inline int emit(float const* scores, int count, int first, listed_scores which, int* to, row_prefetcher& ahead) {
  int kept = 0;
  for_each_vector<has_integers>(0, count, [&](auto kind, int e) KVPOLICY_INLINED {
    prefetch(kind, to + kept + ordinals_ahead);
    if constexpr (has_integers) ahead.next();
    auto const some = comparable(load(kind, scores + e));
    auto const limit = comparable(splat(kind, which.lowest));
    unsigned const stays = bits_of(limit < some) | take_ties(kind, bits_of(some == limit), which.ties);
    int const more = count_bits(kind, stays);
    compress_store(iota(kind, first + e), stays, more, kept + width_of(kind) <= which.most, to + kept);
    kept += more;
  });
  return kept;
}

inline void sample(float const* scores, int count, sample_keys& to) {
  constexpr int some = width < sample_keys::piece ? width : sample_keys::piece;
  using words = typename vector_of<some>::words;
  std::int64_t const gap = (static_cast<std::int64_t>(count) - sample_keys::piece) * sample_keys::piece;
  words low = words{} + forced_key, high = words{} + below_all_keys;
  for (int i = 0; i < sample_keys::size; i += some) {
    words bits;
    load_raw(bits,
             scores + i / sample_keys::piece * gap / (sample_keys::size - sample_keys::piece) + i % sample_keys::piece);
    words key = bits ^ ((0u - (bits >> 31)) | 0x80000000u);  // `radix_key` of each number
    key = key == 0x7FFFFFFFu ? key + 1u : key;
    key = (bits & 0x7FFFFFFFu) > 0x7F800000u ? words{} + nan_key : key;
    low = key < low ? key : low;
    high = key > high ? key : high;
    store_raw(key, to.keys + i);
  }
  to.low = low[0], to.high = high[0];
  for (int i = 1; i < some; ++i) {
    to.low = low[i] < to.low ? low[i] : to.low;
    to.high = high[i] > to.high ? high[i] : to.high;
  }
}

inline constexpr select_kernels select{bracket, emit, sample};
