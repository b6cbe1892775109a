// SPDX-License-Identifier: Apache-2.0
// Sums of rows: kernels/element_rows.hpp says what they promise.

/// For each number d of the rows: end(kind, combine(kind, ... combine(kind, begin(kind, d), rows[0][d], 0) ...,
/// rows[count - 1][d], count - 1), d). Four vectors at a time hide the latency of combining.
template <codec Element, class Begin, class Combine, class End>
KVPOLICY_OP void combine_rows(std::byte const* const* rows, std::byte const* const* ahead, int count, int dims,
                              Begin const& begin, Combine const& combine, End const& end) {
  constexpr int block = 4 * width;
  constexpr std::ptrdiff_t bytes = bytes_of(Element);
  int d = 0;
  for (; d + block <= dims; d += block) {
    floats some[4];
    unrolled<4>([&](auto i) KVPOLICY_INLINED { some[i] = begin(vector_tag{}, d + i * width); });
    for (int r = 0; r < count; ++r) {
      std::byte const* const from = rows[r] + d * bytes;
      for (int at = 0; at < block * bytes; at += 64) prefetch_here(ahead[r] + d * bytes + at);
      unrolled<4>([&](auto i) KVPOLICY_INLINED {
        some[i] = combine(vector_tag{}, some[i], load_elements<Element>(vector_tag{}, from + i * width * bytes), r);
      });
    }
    unrolled<4>([&](auto i) KVPOLICY_INLINED { end(vector_tag{}, some[i], d + i * width); });
  }
  for_each_vector(d, dims, [&](auto kind, int at) KVPOLICY_INLINED {
    auto some = begin(kind, at);
    for (int r = 0; r < count; ++r) some = combine(kind, some, load_elements<Element>(kind, rows[r] + at * bytes), r);
    end(kind, some, at);
  });
}

template <codec Element>
inline void add_rows(std::byte const* const* rows, std::byte const* const* ahead, int count, int dims, float* to) {
  combine_rows<Element>(
      rows, ahead, count, dims, [&](auto kind, int d) KVPOLICY_INLINED { return load(kind, to + d); },
      [](auto, auto a, auto b, int) KVPOLICY_INLINED { return a + b; },
      [&](auto, auto some, int d) KVPOLICY_INLINED { store(some, to + d); });
}

template <codec Element>
inline void add_sum_of_rows(std::byte const* const* rows, std::byte const* const* ahead, int count, int dims,
                            float divisor, float* to) {
  combine_rows<Element>(
      rows, ahead, count, dims, [](auto kind, int) KVPOLICY_INLINED { return splat(kind, 0.0f); },
      [](auto, auto a, auto b, int) KVPOLICY_INLINED { return a + b; },
      [&](auto kind, auto sum, int d)
          KVPOLICY_INLINED { store(load(kind, to + d) + sum / splat(kind, divisor), to + d); });
}

template <codec Element>
inline void add_weighted_rows(std::byte const* const* rows, std::byte const* const* ahead, float const* weights,
                              int count, int dims, float* to) {
  combine_rows<Element>(
      rows, ahead, count, dims, [&](auto kind, int d) KVPOLICY_INLINED { return load(kind, to + d); },
      [&](auto kind, auto a, auto b, int r) KVPOLICY_INLINED { return mul_add(b, splat(kind, weights[r]), a); },
      [&](auto, auto some, int d) KVPOLICY_INLINED { store(some, to + d); });
}

inline void max_of_rows(std::byte const* const* rows, std::byte const* const* ahead, int count, int dims, float* to) {
  combine_rows<codec::f32>(
      rows, ahead, count, dims, [&](auto kind, int d) KVPOLICY_INLINED { return load(kind, to + d); },
      [](auto, auto a, auto b, int) KVPOLICY_INLINED { return max_nan(b, a); },
      [&](auto, auto some, int d) KVPOLICY_INLINED { store(some, to + d); });
}

template <codec Element>
inline void convert(std::byte const* from, int dims, float* to) {
  for_each_vector(0, dims, [&](auto kind, int d) KVPOLICY_INLINED {
    store(load_elements<Element>(kind, from + bytes_of(Element) * std::ptrdiff_t{d}), to + d);
  });
}

inline void stream_lines(std::byte const* from, std::byte* to, int bytes) {
  for (int at = 0; at < bytes; at += 4 * width) stream(load_words(from + at), to + at);
}

inline constexpr element_rows_kernels element_rows{
    .f32 = add_rows<codec::f32>,
    .f16 = add_rows<codec::f16>,
    .bf16 = add_rows<codec::bf16>,
    .max_f32 = max_of_rows,
    .sum_f32 = add_sum_of_rows<codec::f32>,
    .sum_f16 = add_sum_of_rows<codec::f16>,
    .sum_bf16 = add_sum_of_rows<codec::bf16>,
    .weighted_f32 = add_weighted_rows<codec::f32>,
    .weighted_f16 = add_weighted_rows<codec::f16>,
    .weighted_bf16 = add_weighted_rows<codec::bf16>,
    .convert_f16 = convert<codec::f16>,
    .convert_bf16 = convert<codec::bf16>,
    .stream = stream_lines,
};
