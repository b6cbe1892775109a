// Host implementation of count_rows.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <kvpolicy/ops/count_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/packed_bits.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Lists the rows at positions from 0 on, and returns their number. Nothing is written behind them.
using list_rows_function = int (*)(int const* position, int rows, int* index);

inline int list_rows_portable(int const* position, int rows, int* index) {
  int counted = 0;
  for (int r = 0; r < rows; ++r) {
    if (position[r] >= 0) index[counted++] = r;
  }
  return counted;
}

#if defined(__x86_64__)
struct avx2_rows {
  [[gnu::target(KVPOLICY_AVX2)]] static int list(int const* position, int rows, int* index) {
    __m256i row = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    int const whole = rows / 8 * 8;
    int all = 0;  // of whole vectors, so that the last one that is stored as a whole is known
    for (int r = 0; r < whole; r += 8) all += __builtin_popcount(counting(position + r));
    int counted = 0;
    for (int r = 0; r < whole; r += 8) {
      unsigned const counts = counting(position + r);
      int const more = __builtin_popcount(counts);
      put_selected(row, counts, more, counted + 8 <= all, index + counted);
      counted += more;
      row = _mm256_add_epi32(row, _mm256_set1_epi32(8));
    }
    for (int r = whole; r < rows; ++r) {
      if (position[r] >= 0) index[counted++] = r;
    }
    return counted;
  }
  /// A bit for each of eight rows.
  [[gnu::target(KVPOLICY_AVX2)]] static unsigned counting(int const* position) {
    __m256 const some = _mm256_loadu_ps(reinterpret_cast<float const*>(position));
    return ~static_cast<unsigned>(_mm256_movemask_ps(some)) & 0xFFu;
  }
};

struct avx512_rows {
  static constexpr __mmask16 all = 0xFFFF;

  [[gnu::target(KVPOLICY_AVX512)]] static int list(int const* position, int rows, int* index) {
    __m512i row = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int counted = 0;
    for (int r = 0; r < rows; r += 16) {
      __mmask16 const there = rows - r < 16 ? static_cast<__mmask16>((1u << (rows - r)) - 1) : all;
      __m512i const some = _mm512_maskz_loadu_epi32(there, position + r);
      __mmask16 const counts = _mm512_mask_cmpge_epi32_mask(there, some, _mm512_setzero_si512());
      int const more = __builtin_popcount(counts);
      _mm512_mask_storeu_epi32(index + counted, static_cast<__mmask16>((1u << more) - 1),
                               _mm512_maskz_compress_epi32(counts, row));
      counted += more;
      row = _mm512_add_epi32(row, _mm512_set1_epi32(16));
    }
    return counted;
  }
};
#endif

[[nodiscard]] inline list_rows_function list_rows_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_rows::list;
  if (simd_level >= isa::avx2) return avx2_rows::list;
#endif
  static_cast<void>(simd_level);
  return list_rows_portable;
}

}  // namespace detail

template <>
struct implementation<ops::count_rows_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, lanes const& batch, row_positions const& from, counted_rows const& to) {
    auto const each = [&](int i, int) {
      lane const one{batch.sequence_begin + i, batch.layer_begin, 0};
      int const* const position = from.position.row(one);
      int const* const index = to.index.row(one);
      int count = detail::list_rows_for(exec.simd_level())(position, from.valid(one), to.index.row(one));
      int const end = from.end(batch, one);
      while (count > 0 && position[index[count - 1]] >= end) --count;  // positions of rows that count ascend
      *to.number.row(one) = count;
    };
    int const sequences = batch.sequence_end() - batch.sequence_begin;
    constexpr std::int64_t worth_waking = 1 << 16;  // rows: below, other threads would only cost time
    if (std::int64_t{sequences} * from.rows >= worth_waking) return exec.for_each(sequences, each);
    for (int i = 0; i < sequences; ++i) each(i, 0);
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
