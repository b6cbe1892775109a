// Products of float keys and a block of rows, on AVX-512.
//
// A core executes two multiply-adds in each cycle only while few other instructions need the same two ports, and while
// it predicts every branch. The addresses of twelve arbitrary keys fill its registers, so that each prefetch first has
// to free some. If keys follow one another, four addresses and the length of a key are enough.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// Twelve keys that follow one another in memory.
struct adjacent_keys {
  static constexpr int step = 12;

  /// True if keys[0] to keys[11], of `bytes` bytes each, follow one another.
  static bool are_at(void const* const* keys, std::ptrdiff_t bytes) {
    std::ptrdiff_t odd = 0;
    for (int k = 1; k < step; ++k) odd |= address(keys[k]) - address(keys[k - 1]) - bytes;
    return odd == 0;
  }

 private:
  static std::ptrdiff_t address(void const* key) { return reinterpret_cast<std::ptrdiff_t>(key); }
};

/// Prefetches adjacent keys while others are multiplied. Each call fetches a line of the next step's keys, and fetches
/// a line of the keys of the step after it into the second-level cache. A call does not branch.
class adjacent_keys_ahead {
 public:
  /// `keys`: those of the current step, which those of two more steps follow.
  [[gnu::always_inline]] inline explicit adjacent_keys_ahead(void const* const* keys)
      : next_(static_cast<std::byte const*>(keys[adjacent_keys::step])),
        after_(static_cast<std::byte const*>(keys[2 * adjacent_keys::step])),
        advance_(keys[adjacent_keys::step] == keys[adjacent_keys::step + 1] ? 0 : 64) {}  // 0: no key follows

  [[gnu::always_inline]] inline void fetch() {
    __asm__ __volatile__("" ::: "memory");
    __builtin_prefetch(next_);
    __builtin_prefetch(after_, 0, 2);
    next_ += advance_;
    after_ += advance_;
    __asm__ __volatile__("" ::: "memory");
  }

 private:
  std::byte const* next_;
  std::byte const* after_;
  std::ptrdiff_t advance_;
};

/// The logits of twelve keys and `Rows` rows, 16 or 32: out[k][r] = scale * key k . row r. Keys are aligned floats, and
/// `packed` is [dims][Rows]. Wherever keys lie, their logits have the same bits: each product is added by an explicit
/// multiply-add, in the order of dims.
template <int Rows>
struct avx512_floats {
  static constexpr int columns = Rows / 16;
  static constexpr int sums = adjacent_keys::step * columns;
  static constexpr int dims_of_a_group = 4;
  static constexpr int lines_of_a_group = 3;  ///< of keys, to prefetch; the fourth is one that sums are written to

  /// Computes the logits of the first twelve of `count` keys, or of all if there are fewer. `keys` also has the keys of
  /// the next two steps, which are prefetched.
  [[gnu::target(KVPOLICY_AVX512)]] static void logits(void const* const* keys, int count, int dims, float const* packed,
                                                      float scale, float* out) {
    if (count >= adjacent_keys::step && adjacent_keys::are_at(keys, 4 * std::ptrdiff_t{dims})) {
      adjacent(keys, dims, packed, scale, out, std::make_integer_sequence<int, sums>{});
    } else {
      anywhere<adjacent_keys::step>(keys, std::min(adjacent_keys::step, count), dims, packed, scale, out,
                                    std::make_integer_sequence<int, sums>{});
    }
  }

  /// Computes the logits of one key.
  [[gnu::target(KVPOLICY_AVX512)]] static void of_one(void const* const* key, int dims, float const* packed,
                                                      float scale, float* out) {
    anywhere<1>(key, 1, dims, packed, scale, out, std::make_integer_sequence<int, columns>{});
  }

 private:
  /// Computes the logits of `Step` keys that lie anywhere, and stores those of the first `there`.
  template <int Step, int... I>
  [[gnu::target(KVPOLICY_AVX512)]] static void anywhere(void const* const* keys, int there, int dims,
                                                        float const* packed, float scale, float* out,
                                                        std::integer_sequence<int, I...>) {
    float const* key[static_cast<std::size_t>(Step)];
    for (int k = 0; k < Step; ++k) key[k] = static_cast<float const*>(keys[k]);
    __m512 acc[] = {(static_cast<void>(I), _mm512_setzero_ps())...};
    step_ahead<Step> next(keys, 4 * dims, out, there * Rows);
    for (int begin = 0; begin < dims; begin += floats_of_a_line) {
      next.fetch();
      int const end = begin + floats_of_a_line < dims ? begin + floats_of_a_line : dims;
      for (std::ptrdiff_t d = begin; d < end; ++d) {
        __m512 row[static_cast<std::size_t>(columns)];
        for (int c = 0; c < columns; ++c) row[c] = _mm512_loadu_ps(packed + d * Rows + c * 16);
        ((acc[I] = _mm512_fmadd_ps(_mm512_set1_ps(key[I / columns][d]), row[I % columns], acc[I])), ...);
      }
    }
    __m512 const factor = _mm512_set1_ps(scale);
    ((I / columns < there ? _mm512_storeu_ps(out + I * 16, _mm512_mul_ps(acc[I], factor)) : static_cast<void>(0)), ...);
  }

  using quarters = std::byte const* [4];  ///< keys 0, 3, 6 and 9

  /// Computes the logits of twelve adjacent keys.
  template <int... I>
  [[gnu::target(KVPOLICY_AVX512)]] static void adjacent(void const* const* keys, int dims, float const* packed,
                                                        float scale, float* out, std::integer_sequence<int, I...>) {
    auto const* const first = static_cast<std::byte const*>(keys[0]);
    std::ptrdiff_t const stride = 4 * std::ptrdiff_t{dims};
    quarters key = {first, first + 3 * stride, first + 6 * stride, first + 9 * stride};
    adjacent_keys_ahead next(keys);
    __m512 acc[] = {(static_cast<void>(I), _mm512_setzero_ps())...};
    float const* line = out;
    int d = 0;
    for (; d + dims_of_a_group <= dims; d += dims_of_a_group) {
      for (int i = 0; i < dims_of_a_group; ++i) {
        if (i < lines_of_a_group) {
          next.fetch();
        } else {
          fetch_to_write(line);
        }
        add<I...>(acc, key, stride, packed, i);
      }
      for (std::byte const*& each : key) each += 4 * dims_of_a_group;
      packed += dims_of_a_group * Rows;
    }
    for (int i = 0; d + i < dims; ++i) add<I...>(acc, key, stride, packed, i);
    __m512 const factor = _mm512_set1_ps(scale);
    (_mm512_storeu_ps(out + I * 16, _mm512_mul_ps(acc[I], factor)), ...);
  }

  /// Adds the products of number i of each key.
  template <int... I>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void add(__m512* acc, quarters const& key,
                                                                              std::ptrdiff_t stride,
                                                                              float const* packed, std::ptrdiff_t i) {
    __m512 row[static_cast<std::size_t>(columns)];
    for (int c = 0; c < columns; ++c) row[c] = _mm512_loadu_ps(packed + i * Rows + c * 16);
    ((acc[I] = _mm512_fmadd_ps(number(key[I / columns / 3] + I / columns % 3 * stride, i), row[I % columns], acc[I])),
     ...);
  }
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 number(std::byte const* key,
                                                                                   std::ptrdiff_t i) {
    return _mm512_set1_ps(reinterpret_cast<float const*>(key)[i]);
  }

  /// Fetches the next line that sums will be written to.
  [[gnu::always_inline]] static inline void fetch_to_write(float const*& line) {
    __builtin_prefetch(line, 1);
    line += floats_of_a_line;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

#endif
