// The kernels of row_blocks.hpp, compiled for each instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <kvpolicy/ops/host/few_rows.hpp>
#include <kvpolicy/ops/host/few_rows_avx2.hpp>
#include <kvpolicy/ops/host/floats_avx512.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/row_blocks.hpp>
#include <kvpolicy/ops/host/rows.hpp>
#include <kvpolicy/ops/host/softmax_avx512.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Code for any compiler and processor.
template <int Rows>
struct portable_blocks {
  using bodies = block_bodies<4, Rows>;
  static void logits(void const* const* keys, int count, int dims, void const* packed, float scale, float* out) {
    if constexpr (Rows == few_rows) {
      bodies::few(keys, count, dims, packed, scale, out);
    } else {
      bodies::template logits<4, 2>(keys, count, dims, packed, scale, out);
    }
  }
  static void widen(codec element, std::byte const* from, int dims, float* to) {
    if (element == codec::bf16) return widen_bf16<4>(from, dims, to);
    load_row(element, from, bytes_of(element), dims, to);
  }
  static void advance(block_view const& block, float* row_max, float* sum) { bodies::advance(block, row_max, sum); }
  static void finalize(float* scale, int stretches, int const* seen, float const* row_max, float const* sum) {
    bodies::finalize(scale, stretches, seen, row_max, sum);
  }
  static void cap(float* logits, int count, float cap) { cap_all<4>(logits, count, cap); }
  static void normalise(block_view const& block, float const* lse) { bodies::normalise(block, lse); }
  static void reduce(block_view const& block, bool maximum, bool grow, float* out) {
    bodies::reduce(block, maximum, grow, out);
  }
  static void gather_head(block_view const& block, bool maximum, bool grow, float* into) {
    bodies::gather_head(block, maximum, grow, into);
  }
  static constexpr block_kernels kernels{.logits = logits,
                                         .widen = widen,
                                         .advance = advance,
                                         .finalize = finalize,
                                         .cap = cap,
                                         .normalise = normalise,
                                         .reduce = reduce,
                                         .gather_head = gather_head};
};

#if defined(__x86_64__)

template <int Rows>
struct avx2_blocks {
  using bodies = block_bodies<Rows == few_rows ? few_rows : 8, Rows>;
  [[gnu::target(KVPOLICY_AVX2)]] static void logits(void const* const* keys, int count, int dims, void const* packed,
                                                    float scale, float* out) {
    if constexpr (Rows == few_rows) {
      if (dims % 8 == 0) return avx2_few_rows<codec::f32>::products(keys, count, dims, packed, scale, out);
      block_bodies<8, Rows>::few(keys, count, dims, packed, scale, out);
    } else {
      bodies::template logits<6, 2>(keys, count, dims, packed, scale, out);
    }
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void widen(codec element, std::byte const* from, int dims, float* to) {
    if (element == codec::bf16) return widen_bf16<8>(from, dims, to);
    int d = 0;
    for (; element == codec::f16 && d + 8 <= dims; d += 8) {
      _mm256_storeu_ps(to + d, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<__m128i const*>(from + 2 * d))));
    }
    load_row(element, from + d * bytes_of(element), bytes_of(element), dims - d, to + d);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void advance(block_view const& block, float* row_max, float* sum) {
    if constexpr (Rows == few_rows) {
      few_bodies<8>::advance(block, row_max, sum);
    } else {
      bodies::advance(block, row_max, sum);
    }
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void finalize(float* scale, int stretches, int const* seen,
                                                      float const* row_max, float const* sum) {
    bodies::finalize(scale, stretches, seen, row_max, sum);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void cap(float* logits, int count, float cap) {
    cap_all<8>(logits, count, cap);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void normalise(block_view const& block, float const* lse) {
    bodies::normalise(block, lse);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void reduce(block_view const& block, bool maximum, bool grow, float* out) {
    if constexpr (Rows == few_rows) {
      few_bodies<8>::reduce(block, maximum, grow, out);
    } else {
      bodies::reduce(block, maximum, grow, out);
    }
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void gather_head(block_view const& block, bool maximum, bool grow,
                                                         float* into) {
    bodies::gather_head(block, maximum, grow, into);
  }
  static constexpr bool are_few = Rows == few_rows;
  static constexpr block_kernels kernels{.logits = logits,
                                         .rows_f16 = are_few ? avx2_few_rows<codec::f16>::products : nullptr,
                                         .rows_bf16 = are_few ? avx2_few_rows<codec::bf16>::products : nullptr,
                                         .rows_multiple = 8,
                                         .widen = widen,
                                         .advance = advance,
                                         .finalize = finalize,
                                         .cap = cap,
                                         .normalise = normalise,
                                         .reduce = reduce,
                                         .gather_head = gather_head};
};

template <int Rows>
struct avx512_blocks {
  using bodies = block_bodies<Rows == few_rows ? few_rows : 16, Rows>;
  [[gnu::target(KVPOLICY_AVX512)]] static void logits(void const* const* keys, int count, int dims, void const* packed,
                                                      float scale, float* out) {
    if constexpr (Rows == few_rows) {
      block_bodies<16, Rows>::few(keys, count, dims, packed, scale, out);
    } else {
      for (int k = 0; k < count; k += adjacent_keys::step) {
        avx512_floats<Rows>::logits(keys + k, count - k, dims, static_cast<float const*>(packed), scale,
                                    out + static_cast<std::ptrdiff_t>(k) * Rows);
      }
    }
  }

  /// Like block_bodies::multiply, for pairs of bf16.
  template <int... I>
  [[gnu::target(KVPOLICY_AVX512 ",avx512bf16")]] static void pairs(void const* const* keys, int there, int dims,
                                                                   std::uint32_t const* packed, float scale, float* out,
                                                                   std::integer_sequence<int, I...>) {
    constexpr int columns = Rows / 16;
    constexpr int dims_of_a_line = 2 * floats_of_a_line;
    std::byte const* key[12];
    for (int k = 0; k < 12; ++k) key[k] = static_cast<std::byte const*>(keys[k]);
    __m512 acc[] = {(static_cast<void>(I), _mm512_setzero_ps())...};
    step_ahead<12> next(keys, 2 * dims, out, there * Rows);
    for (int begin = 0; begin < dims; begin += dims_of_a_line) {
      next.fetch();
      int const end = begin + dims_of_a_line < dims ? begin + dims_of_a_line : dims;
      for (std::ptrdiff_t d = begin; d < end; d += 2) {
        __m512i row[static_cast<std::size_t>(columns)];
        for (int c = 0; c < columns; ++c) row[c] = _mm512_loadu_si512(packed + d / 2 * Rows + c * 16);
        ((acc[I] =
              _mm512_dpbf16_ps(acc[I], __builtin_bit_cast(__m512bh, row[I % columns]),
                               __builtin_bit_cast(__m512bh, _mm512_set1_epi32(pair_at(key[I / columns] + 2 * d))))),
         ...);
      }
    }
    (bodies::template store<I / columns, I % columns>(__builtin_bit_cast(typename bodies::floats, acc[I]), there, scale,
                                                      out),
     ...);
  }

  [[gnu::target(KVPOLICY_AVX512 ",avx512bf16")]] static int pair_at(std::byte const* from) {
    int pair = 0;
    std::memcpy(&pair, from, sizeof pair);
    return pair;
  }

  [[gnu::target(KVPOLICY_AVX512 ",avx512bf16")]] static void logits_bf16(void const* const* keys, int count, int dims,
                                                                         void const* packed, float scale, float* out) {
    for (int k = 0; k < count; k += 12) {
      pairs(keys + k, 12 < count - k ? 12 : count - k, dims, static_cast<std::uint32_t const*>(packed), scale,
            out + static_cast<std::ptrdiff_t>(k) * Rows, std::make_integer_sequence<int, 12 * Rows / 16>{});
    }
  }

  [[gnu::target(KVPOLICY_AVX512)]] static void advance(block_view const& block, float* row_max, float* sum) {
    if constexpr (Rows == few_rows) {
      few_bodies<16>::advance(block, row_max, sum);
    } else {
      avx512_softmax<Rows>::advance(block, row_max, sum);
    }
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void finalize(float* scale, int stretches, int const* seen,
                                                        float const* row_max, float const* sum) {
    bodies::finalize(scale, stretches, seen, row_max, sum);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void cap(float* logits, int count, float cap) {
    cap_all<16>(logits, count, cap);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void normalise(block_view const& block, float const* lse) {
    if constexpr (Rows == few_rows) {
      bodies::normalise(block, lse);
    } else {
      avx512_softmax<Rows>::normalise(block, lse);
    }
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void reduce(block_view const& block, bool maximum, bool grow, float* out) {
    if constexpr (Rows == few_rows) {
      few_bodies<16>::reduce(block, maximum, grow, out);
    } else {
      bodies::reduce(block, maximum, grow, out);
    }
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void gather_head(block_view const& block, bool maximum, bool grow,
                                                           float* into) {
    bodies::gather_head(block, maximum, grow, into);
  }
  static constexpr block_kernels kernels{.logits = logits,
                                         .widen = avx2_blocks<Rows>::widen,
                                         .advance = advance,
                                         .finalize = finalize,
                                         .cap = cap,
                                         .normalise = normalise,
                                         .reduce = reduce,
                                         .gather_head = gather_head};
  static constexpr block_kernels kernels_bf16{.logits = logits,
                                              .logits_bf16 = logits_bf16,
                                              .widen = avx2_blocks<Rows>::widen,
                                              .advance = advance,
                                              .finalize = finalize,
                                              .cap = cap,
                                              .normalise = normalise,
                                              .reduce = reduce,
                                              .gather_head = gather_head};
};

#endif

}  // namespace KVPOLICY_NAMESPACE::detail
