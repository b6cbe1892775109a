// SPDX-License-Identifier: Apache-2.0
// Rows that become columns: kernels/transpose.hpp says what they promise.

inline void rows_to_columns(float const* const* from, int rows, int columns, float* to, std::int64_t stride) {
  int r = 0;
  for (; r + width <= rows; r += width) {
    int c = 0;
    for (; c + 4 <= columns; c += 4) {
      floats column[4];
      load_columns([&](int i) KVPOLICY_INLINED { return reinterpret_cast<std::byte const*>(from[r + i] + c); }, column);
      unrolled<4>([&](auto i) KVPOLICY_INLINED { store(column[i] + floats{}, to + (c + i) * stride + r); });
    }
    for (; c < columns; ++c) {
      for (int i = r; i < r + width; ++i) to[c * stride + i] = from[i][c] + 0.0f;
    }
  }
  for (int c = 0; c < columns; ++c) {
    for (int i = r; i < rows; ++i) to[c * stride + i] = from[i][c] + 0.0f;
  }
}

/// Numbers of bf16 are transposed as pairs of two heads.
template <codec Element>
inline int heads_to_rows(std::byte const* from, std::int64_t step, int count, float* const* to) {
  constexpr int heads_of_four = Element == codec::f32 ? 4 : 8;
  int const tokens_of_a_line = step > 0 && step < 64 ? static_cast<int>(64 / step) : 1;
  int e = 0;
  for (; e + width <= count; e += width) {
    for (int i = 0; i < width; i += tokens_of_a_line) prefetch_stream(from + (e + i) * step);
    for (int h = 0; h < heads_of_a_tile; h += heads_of_four) {
      floats column[4];
      load_columns([&](int i) KVPOLICY_INLINED { return from + (e + i) * step + 4 * h; }, column);
      auto const put = [&](auto numbers, int head) KVPOLICY_INLINED {
        store(choose(numbers == floats{}, splat(-0.0f), numbers), to[head] + e);
      };
      unrolled<4>([&](auto i) KVPOLICY_INLINED {
        if constexpr (Element == codec::f32) {
          put(column[i], h + i);
        } else {
          put(even_bf16(bit_cast_ints(column[i])), 2 * i);
          put(odd_bf16(bit_cast_ints(column[i])), 2 * i + 1);
        }
      });
    }
  }
  return e;
}

inline constexpr transpose_kernels transpose{rows_to_columns, heads_to_rows<codec::f32>, heads_to_rows<codec::bf16>};
