// Sums of the squares of rows, for vectors of any width.
//
// Squares of f32 numbers are exact in double, and those of f16 and bf16 numbers in float. Partial sums are added in one
// order, whatever the vectors, so every instruction set gives the same bits.
#pragma once

#include <cstring>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int sums_of_a_norm = 16;         ///< partial sums of f32 rows, in double
inline constexpr int narrow_sums_of_a_norm = 64;  ///< partial sums of f16 and bf16 rows, in float

using norm_rows = std::byte const* const*;

/// Adds the sixteen partial sums of a row.
[[nodiscard]] inline double add_sums(double* sums) {
  for (int half = sums_of_a_norm / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

[[nodiscard]] inline float number_at(codec element, std::byte const* at) {
  return element == codec::f32   ? load(codec::f32, at)
         : element == codec::f16 ? load(codec::f16, at)
                                 : load(codec::bf16, at);
}

/// The sum of squares of a row whose elements are `step` bytes apart, in double.
[[nodiscard]] inline double wide_square_sum(codec element, std::byte const* row, std::int64_t step, int dims) {
  double sums[sums_of_a_norm] = {};
  for (int d = 0; d < dims; ++d) {
    auto const value = static_cast<double>(number_at(element, row + d * step));
    sums[d % sums_of_a_norm] += value * value;
  }
  return add_sums(sums);
}

inline constexpr double least_in_float = 0x1p-80;
inline constexpr double most_in_float = 0x1p126;

/// True if a sum of squares that was computed in float has lost nothing by being too large or too small.
[[nodiscard]] inline bool fits_float(double square_sum) {
  return square_sum >= least_in_float && square_sum <= most_in_float;
}

/// `Width` is the number of floats in a vector, and twice that of doubles.
template <int Width>
struct norm_bodies {
  using floats = typename vector_of<Width>::floats;
  using ints = typename vector_of<Width>::ints;
  using words = typename vector_of<Width>::words;
  using some_floats = typename vector_of<Width / 2>::floats;
  using doubles = typename vector_of<Width / 2>::doubles;
  static constexpr int chains = 2 * sums_of_a_norm / Width;
  static constexpr int pairs = narrow_sums_of_a_norm / Width / 2;
  static constexpr int narrow_bytes = 2 * narrow_sums_of_a_norm;

  /// Sums of f32 rows. Element d is in partial sum d mod 16.
  [[gnu::always_inline]] static inline void wide_sums(norm_rows rows, norm_rows ahead, int count, int dims,
                                                      double* out) {
    for (int r = 0; r < count; ++r) {
      doubles sum[static_cast<std::size_t>(chains)] = {};
      int d = 0;
      for (; d + sums_of_a_norm <= dims; d += sums_of_a_norm) {
        prefetch_here(ahead[r] + static_cast<std::ptrdiff_t>(d) * 4);
        for (int c = 0; c < chains; ++c) {
          some_floats some;
          get(some, rows[r] + static_cast<std::ptrdiff_t>(d + c * Width / 2) * 4);
          doubles const wide = __builtin_convertvector(some, doubles);
          sum[c] += wide * wide;
        }
      }
      if (d < dims) {
        float rest[sums_of_a_norm] = {};
        std::memcpy(rest, rows[r] + static_cast<std::ptrdiff_t>(d) * 4, static_cast<std::size_t>(dims - d) * 4);
        for (int c = 0; c < chains; ++c) {
          some_floats some;
          get(some, rest + c * Width / 2);
          doubles const wide = __builtin_convertvector(some, doubles);
          sum[c] += wide * wide;
        }
      }
      out[r] = total_of(sum);
    }
  }

  /// Sums of f16 or bf16 rows, two neighbours of which are one word. Of the 64 partial sums of a row the lower halves
  /// of words have 32, and the upper halves the others. Four of them are added at a time in float, and the rest in
  /// double. A sum that is too large or too small for a float is computed again in double.
  template <codec Element>
  [[gnu::always_inline]] static inline void narrow_sums(norm_rows rows, norm_rows ahead, int count, int dims,
                                                        double* out) {
    for (int r = 0; r < count; ++r) {
      floats sum[static_cast<std::size_t>(2 * pairs)] = {};
      ints most{};
      int const bytes = 2 * dims;
      int at = 0;
      for (; at + narrow_bytes <= bytes; at += narrow_bytes) {
        add_squares<Element>(rows[r] + at, ahead[r] + at, sum, most);
      }
      if (at < bytes) {
        std::byte rest[static_cast<std::size_t>(narrow_bytes)] = {};
        std::memcpy(rest, rows[r] + at, static_cast<std::size_t>(bytes - at));
        add_squares<Element>(rest, ahead[r] + at, sum, most);
      }
      for (int half = pairs; half >= pairs / 2; half /= 2) {
        for (int c = 0; c < half; ++c) sum[c] += sum[c + half];
      }
      // An infinity or NaN of f16, which is scaled like a number, makes the sum NaN. One of bf16 reaches the sum
      // itself.
      ints const not_finite = most >= 0x7C00 << 13;
      if (Element == codec::f16) sum[0] += __builtin_bit_cast(floats, not_finite);
      float sixteen[sums_of_a_norm];
      for (int c = 0; c < pairs / 2; ++c) put(sum[c], sixteen + c * Width);
      out[r] = checked_total<Element>(sixteen, rows[r], dims);
    }
  }

  /// Adds sixteen floats in double, or computes the row's sum of squares again if they are too large or too small.
  template <codec Element>
  [[gnu::always_inline]] static inline double checked_total(float const* sixteen, std::byte const* row, int dims) {
    doubles wide[static_cast<std::size_t>(chains)];
    for (int c = 0; c < chains; ++c) {
      some_floats some;
      get(some, sixteen + c * Width / 2);
      wide[c] = __builtin_convertvector(some, doubles);
    }
    double const total = total_of(wide);
    return fits_float(total) ? total : wide_square_sum(Element, row, 2, dims);
  }

 private:
  /// Adds the squares of 64 elements. `most` becomes the largest magnitudes of f16 numbers.
  template <codec Element>
  [[gnu::always_inline]] static inline void add_squares(std::byte const* from, std::byte const* ahead, floats* sum,
                                                        ints& most) {
    for (int c = 0; c < pairs; ++c) {
      if (4 * c * Width % 64 == 0) prefetch_here(ahead + 4 * c * Width);
      words both;
      get(both, from + 4 * c * Width);
      if constexpr (Element == codec::bf16) {
        floats const low = __builtin_bit_cast(floats, both << 16);
        floats const high = __builtin_bit_cast(floats, both & 0xFFFF0000u);
        sum[c] += low * low;
        sum[pairs + c] += high * high;
      } else {
        words const low = (both << 13) & (0x7FFFu << 13);
        words const high = (both >> 3) & (0x7FFFu << 13);
        square<Element>(low, sum[c], most);
        square<Element>(high, sum[pairs + c], most);
      }
    }
  }
  /// `magnitude` has the bits of an f16 number without its sign where a float has its lower exponent and its mantissa.
  template <codec Element>
  [[gnu::always_inline]] static inline void square(words const& magnitude, floats& sum, ints& most) {
    ints const bits = __builtin_bit_cast(ints, magnitude);
    most = bits > most ? bits : most;
    floats const value = __builtin_bit_cast(floats, magnitude) * 0x1p112f;
    sum += value * value;
  }
  /// Adds sixteen doubles, as `add_sums` does.
  [[gnu::always_inline]] static inline double total_of(doubles* sum) {
    for (int half = chains / 2; half > 0; half /= 2) {
      for (int c = 0; c < half; ++c) sum[c] += sum[c + half];
    }
    double all[static_cast<std::size_t>(Width / 2)];
    put(sum[0], all);
    for (int half = Width / 4; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) all[i] += all[i + half];
    }
    return all[0];
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
