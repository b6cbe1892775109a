// SPDX-License-Identifier: Apache-2.0
// Sums of the squares of rows: kernels/norms.hpp says what they promise.

constexpr int sum_vectors = 2 * sums_of_a_norm / width;        ///< of doubles, with the sixteen partial sums of a row
constexpr int narrow_vectors = narrow_sums_of_a_norm / width;  ///< of floats, with 64 partial sums

/// Adds all partial sums: the upper half to the lower one, until one is left.
template <std::size_t N>
KVPOLICY_OP double reduce_add(doubles const (&sum)[N]) {
  if constexpr (N == 1) {
    return reduce_add(sum[0]);
  } else {
    doubles half[N / 2];
    unrolled<N / 2>([&](auto i) KVPOLICY_INLINED { half[i] = sum[i] + sum[i + N / 2]; });
    return reduce_add(half);
  }
}

/// Adds the squares of sixteen floats. Element d of a row is in partial sum d mod 16.
template <class From>
KVPOLICY_OP void add_floats(From from, doubles (&sum)[sum_vectors]) {
  unrolled<sum_vectors>([&](auto i)
                            KVPOLICY_INLINED { sum[i] = add_square(load_widened(from + 2 * width * i), sum[i]); });
}

KVPOLICY_OP double sum_of_floats(std::byte const* row, std::byte const* ahead, int dims) {
  doubles sum[sum_vectors];
  unrolled<sum_vectors>([&](auto i) KVPOLICY_INLINED { sum[i] = doubles{}; });
  int at = 0;
  for (; at + 64 <= 4 * dims; at += 64) {
    prefetch_here(ahead + at);
    add_floats(row + at, sum);
  }
  if (at < 4 * dims) {
    padded<64> const rest(row + at, 4 * dims - at);
    add_floats(rest.begin(), sum);
  }
  return reduce_add(sum);
}

/// True if the partial sums of a row are in the order of its elements. Otherwise the first half of them has the even
/// elements and the second half the odd ones.
template <codec Element>
constexpr bool in_order = Element == codec::f16 && has_f16;

/// Adds the squares of 64 elements.
template <codec Element, class From>
KVPOLICY_OP void add_narrow(From from, floats (&sum)[narrow_vectors]) {
  constexpr int half = narrow_vectors / 2;
  if constexpr (in_order<Element>) {
    unrolled<narrow_vectors>([&](auto i)
                                 KVPOLICY_INLINED { sum[i] = add_square(load_f16(from + 2 * width * i), sum[i]); });
  } else {
    unrolled<half>([&](auto i) KVPOLICY_INLINED {
      auto const pairs = load_words(from + 4 * width * i);
      if constexpr (Element == codec::f16) {
        sum[i] = add_square(even_f16(pairs), sum[i]);
        sum[i + half] = add_square(odd_f16(pairs), sum[i + half]);
      } else {
        sum[i] = add_square(even_bf16(pairs), sum[i]);
        sum[i + half] = add_square(odd_bf16(pairs), sum[i + half]);
      }
    });
  }
}

/// Adds the 64 partial sums in groups of four in float, neighbours first, and the sixteen results in double.
template <codec Element>
KVPOLICY_OP double sum_of_narrow(std::byte const* row, std::byte const* ahead, int dims) {
  constexpr int half = narrow_vectors / 2;
  floats sum[narrow_vectors], two[half];
  unrolled<narrow_vectors>([&](auto i) KVPOLICY_INLINED { sum[i] = floats{}; });
  int at = 0;
  for (; at + 128 <= 2 * dims; at += 128) {
    prefetch_here(ahead + at);
    prefetch_here(ahead + at + 64);
    add_narrow<Element>(row + at, sum);
  }
  if (at < 2 * dims) {
    padded<128> const rest(row + at, 2 * dims - at);
    add_narrow<Element>(rest.begin(), sum);
  }
  unrolled<half>([&](auto i) KVPOLICY_INLINED {
    if constexpr (in_order<Element>) {
      two[i] = add_pairs(sum[2 * i], sum[2 * i + 1]);
    } else {
      two[i] = sum[i] + sum[i + half];
    }
  });
  doubles sixteen[sum_vectors];
  unrolled<half / 2>([&](auto i) KVPOLICY_INLINED {
    floats const four = two[i] + two[i + half / 2];
    sixteen[2 * i] = lower_widened(four);
    sixteen[2 * i + 1] = upper_widened(four);
  });
  return reduce_add(sixteen);
}

/// A sum of narrow numbers that is too large or too small for a float is computed again in double.
template <codec Element>
inline void square_sums(norm_rows rows, norm_rows ahead, int count, int dims, double* out) {
  for (int r = 0; r < count; ++r) {
    if constexpr (Element == codec::f32) {
      out[r] = sum_of_floats(rows[r], ahead[r], dims);
    } else {
      double const sum = sum_of_narrow<Element>(rows[r], ahead[r], dims);
      out[r] = fits_float(sum) ? sum : wide_square_sum(Element, rows[r], 2, dims);
    }
  }
}

inline void roots_of_sums(double const* sums, float* norms) {
  for (int i = 0; i < 16; i += width / 2) store_roots(load(sums + i), norms + i);
}

inline constexpr norms_kernels norms{square_sums<codec::f32>, square_sums<codec::f16>, square_sums<codec::bf16>,
                                     roots_of_sums};
