// The softmax of blocks of rows on AVX-512, which scales by a power of two in one operation.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <kvpolicy/ops/host/block_view.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// Computes what `block_bodies::advance` and `block_bodies::normalise` compute, for blocks of 16 or 32 rows.
template <int Rows>
struct avx512_softmax {
  static constexpr int columns = Rows / 16;
  static constexpr __mmask16 all = 0xFFFF;  ///< without a mask, g++ 12 warns inside its own header

  [[gnu::target(KVPOLICY_AVX512)]] static void advance(block_view const& block, float* row_max, float* sum) {
    for (int c = 0; c < columns; ++c) {
      __m512i const seen = _mm512_sub_epi32(_mm512_loadu_si512(block.seen + 16 * c), _mm512_set1_epi32(block.first));
      if (_mm512_cmplt_epi32_mask(seen, _mm512_set1_epi32(block.count)) == 0) {
        column_of<true>(block, c, seen, row_max, sum);
      } else {
        column_of<false>(block, c, seen, row_max, sum);
      }
    }
  }

  [[gnu::target(KVPOLICY_AVX512)]] static void normalise(block_view const& block, float const* lse) {
    for (int c = 0; c < columns; ++c) {
      __m512 const given = _mm512_loadu_ps(lse + 16 * c);
      __m512 const most = _mm512_set1_ps(88);
      float* const column = block.values + 16 * c;
      for (int e = 0; e < block.count; ++e) {
        float* const at = column + static_cast<std::ptrdiff_t>(e) * Rows;
        __m512 const value = _mm512_sub_ps(_mm512_loadu_ps(at), given);
        _mm512_storeu_ps(at, exp_of(_mm512_maskz_min_ps(all, most, value)));  // NaN stays NaN as the second operand
      }
      _mm512_storeu_ps(block.scale + 16 * c, _mm512_set1_ps(1));
    }
  }

  /// Returns e^x for x <= 88, to 2 units in the last place, and 0 for x below -87. NaN stays NaN.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 exp_of(__m512 const& x) {
    return exp_or_zero(x, _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87), _CMP_NLT_UQ));
  }
  /// The same for the numbers that `some` has; the others are 0.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 exp_of(__m512 const& x, __mmask16 some) {
    return exp_or_zero(x, _mm512_mask_cmp_ps_mask(some, x, _mm512_set1_ps(-87), _CMP_NLT_UQ));
  }

 private:
  /// Advances one column of 16 rows. `All` says that each of them sees every entry.
  template <bool All>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void column_of(block_view const& block, int c,
                                                                                    __m512i const& seen, float* row_max,
                                                                                    float* sum) {
    __m512 const before = _mm512_loadu_ps(row_max + 16 * c);
    __m512 total = _mm512_loadu_ps(sum + 16 * c);
    float* const column = block.values + 16 * c;
    __m512 most[] = {before, before, before, before};  // one alone would make each maximum wait for the one before it
    int e = 0;
    for (; e + 4 <= block.count; e += 4) {
      for (int i = 0; i < 4; ++i) take_maximum<All>(seen, e + i, column, most[i]);
    }
    for (; e < block.count; ++e) take_maximum<All>(seen, e, column, most[0]);
    __m512 const now = _mm512_maskz_max_ps(all, _mm512_maskz_max_ps(all, most[0], most[1]),
                                           _mm512_maskz_max_ps(all, most[2], most[3]));
    __m512 const lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    __m512 const zero = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(now, lowest, _CMP_NEQ_UQ), now);  // 0: nothing is seen
    total = _mm512_mul_ps(total, exp_of(_mm512_sub_ps(before, zero)));
    for (e = 0; e < block.count; ++e) {
      float* const at = column + static_cast<std::ptrdiff_t>(e) * Rows;
      __m512 const value = exp_of(_mm512_sub_ps(_mm512_loadu_ps(at), zero));
      _mm512_storeu_ps(at, value);
      total = _mm512_mask_add_ps(total, rows_that_see<All>(seen, e), total, value);
    }
    _mm512_storeu_ps(row_max + 16 * c, now);
    _mm512_storeu_ps(block.scale + 16 * c, now);
    _mm512_storeu_ps(sum + 16 * c, total);
  }

  /// Takes entry e of a column into the maxima of the rows that see it. NaN of a maximum stays, that of an entry does
  /// not.
  template <bool All>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void take_maximum(__m512i const& seen, int e,
                                                                                       float const* column,
                                                                                       __m512& most) {
    __m512 const value = _mm512_loadu_ps(column + static_cast<std::ptrdiff_t>(e) * Rows);
    most = _mm512_mask_max_ps(most, rows_that_see<All>(seen, e), value, most);
  }

  /// Returns the rows that see entry e.
  template <bool All>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __mmask16 rows_that_see(__m512i const& seen,
                                                                                             int e) {
    if constexpr (All) return all;
    return _mm512_cmpgt_epi32_mask(seen, _mm512_set1_epi32(e));
  }

  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 exp_or_zero(__m512 const& x,
                                                                                        __mmask16 stays) {
    __m512 const rounds = _mm512_set1_ps(12582912);  // 1.5 * 2^23: a number that is added to it becomes an integer
    __m512 const n = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(1.44269504f), rounds), rounds);
    __m512 f = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);  // ln 2 in two parts
    f = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), f);
    typename vector_of<16>::floats near_zero;
    exp_near_zero<16>(f, near_zero);
    return _mm512_maskz_scalef_ps(stays, near_zero, n);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

#endif
