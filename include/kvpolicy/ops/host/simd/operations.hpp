// Vectors of an instruction set, and what can be done with them.
//
// A kernel is written once, over the types and functions below, in a file that `simd/each_isa.hpp` compiles for each
// instruction set, in a namespace and a target of its own. There vectors are values, and lambdas are inlined.
//
//   floats, doubles, ints    `width` numbers of 32 bits, or `width / 2` doubles
//   mask                     a truth value for each of `width` numbers
//   load_*, store            from and to any address
//   has_integers             passes over lists go through vectors of integers; elsewhere, number by number
//   has_f16                  `load_f16` converts; elsewhere `even_f16` and `odd_f16` give magnitudes of neighbours
//
// Rules. Arrays of vectors are indexed by constants (`each<N>`), or g++ keeps them in memory. A constructor is written
// out, and no member has a default initializer: what a compiler writes itself has no target. A lambda says
// KVPOLICY_INLINED.
// These files include nothing: what they use of std is included here.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <kvpolicy/ops/radix_key.hpp>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/// Behind the parameters of a lambda in a kernel.
#define KVPOLICY_INLINED __attribute__((always_inline))

/// What is between these is compiled for a target, such as KVPOLICY_AVX2.
#define KVPOLICY_PRAGMA_OF(...) _Pragma(#__VA_ARGS__)
#define KVPOLICY_PRAGMA(...) KVPOLICY_PRAGMA_OF(__VA_ARGS__)
#if defined(__clang__)
#define KVPOLICY_BEGIN_REGION(instructions) \
  KVPOLICY_PRAGMA(clang attribute push(__attribute__((target(instructions))), apply_to = function))
#define KVPOLICY_END_REGION KVPOLICY_PRAGMA(clang attribute pop)
#else
#define KVPOLICY_BEGIN_REGION(instructions) KVPOLICY_PRAGMA(GCC push_options) KVPOLICY_PRAGMA(GCC target(instructions))
#define KVPOLICY_END_REGION KVPOLICY_PRAGMA(GCC pop_options)
#endif

// What simd/each_isa.hpp makes of a family's name: the file of its kernels, and its table.
// clang-format off
#define KVPOLICY_KERNELS_OF(family) <kvpolicy/ops/host/kernels/family.kernel.hpp>
// clang-format on
#define KVPOLICY_TABLE(family) KVPOLICY_TABLE_OF(family)
#if defined(KVPOLICY_COMPILED_KERNELS)
#define KVPOLICY_TABLE_OF(family) extern by_isa<family##_kernels> const family##_of_isa
#else
#define KVPOLICY_TABLE_OF(family) \
  inline constexpr by_isa<family##_kernels> family##_of_isa { portable::family, avx2::family, avx512::family }
#endif

namespace KVPOLICY_NAMESPACE::detail {

/// Copies whole cache lines to a place that begins with one, by stores that do not fetch the line that they overwrite.
/// `finish_streams` must follow the last copy, so that other threads see what was written.
inline void stream_lines(std::byte const* from, std::byte* to, int bytes) {
#if defined(__x86_64__)
  for (int at = 0; at < bytes; at += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), _mm_loadu_si128(reinterpret_cast<__m128i const*>(from + at)));
  }
#else
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
#endif
}
inline void finish_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

/// The last bytes of a row, and zeros behind them.
template <int Bytes>
struct zero_padded {
  alignas(64) std::byte of[static_cast<std::size_t>(Bytes)];

  zero_padded(std::byte const* from, int bytes) {
    std::memset(of, 0, static_cast<std::size_t>(Bytes));
    std::memcpy(of, from, static_cast<std::size_t>(bytes));
  }
  [[nodiscard]] std::byte const* begin() const { return of; }
};

/// A number of 32 bits, as a vector of one. Passes over lists use it for the entries behind the last whole vector.
struct one_int {
  int of;
};
struct one_mask {
  int of;  ///< 0 or 1: a loop over such has no branch, so that compilers make vectors of it
};
constexpr int lanes_of(one_int) { return 1; }
inline void fetch(one_int, void const*) {}  // one entry after another needs no prefetch
template <class Vector>
KVPOLICY_OP void fetch(Vector const&, void const* line) {
  __builtin_prefetch(line);
}
inline one_int load_as(one_int, int const* from) { return {*from}; }
inline one_int same_as(one_int, int value) { return {value}; }
inline one_int counting_as(one_int, int first) { return {first}; }
inline one_mask marked_as(one_int, unsigned char const* marks) { return {*marks != 0 ? 1 : 0}; }
inline void store(one_int some, int* to) { *to = some.of; }
inline one_mask operator==(one_int a, one_int b) { return {a.of == b.of ? 1 : 0}; }
inline one_mask operator>(one_int a, one_int b) { return {a.of > b.of ? 1 : 0}; }
inline one_mask below(one_int a, one_int end) {
  return {static_cast<unsigned>(a.of) < static_cast<unsigned>(end.of) ? 1 : 0};
}
inline one_mask operator|(one_mask a, one_mask b) { return {a.of | b.of}; }
inline one_mask operator!(one_mask a) { return {1 - a.of}; }
inline bool any(one_mask of) { return of.of != 0; }
inline int number_of(one_mask of) { return of.of; }
inline one_int gather(int const* map, one_int at) { return {map[at.of]}; }
inline one_mask gather_set(unsigned char const* bytes, one_int at) { return {bytes[at.of] != 0 ? 1 : 0}; }
inline one_int choose(one_mask which, one_int yes, one_int no) { return which.of != 0 ? yes : no; }
/// A list without room for one more is complete, so that there is nothing to select then: no branch for an entry.
inline void pack_bits(one_int some, unsigned, int, bool room, int* to) {
  if (room) *to = some.of;
}
inline void pack(one_int some, one_mask which, int more, bool room, int* to) {
  pack_bits(some, static_cast<unsigned>(which.of), more, room, to);
}
inline unsigned bits_of(one_mask of) { return static_cast<unsigned>(of.of); }
inline int count_bits(one_int, unsigned bits) { return static_cast<int>(bits); }
template <class Vector>
KVPOLICY_OP int count_bits(Vector const&, unsigned bits) {
  return __builtin_popcount(bits);
}

/// A float to be compared, by its key: so NaN is found under -ffast-math, too.
struct one_float {
  float of;
};
inline one_float same_floats_as(one_int, float value) { return {value}; }
inline one_float load_floats_as(one_int, float const* from) {
  one_float made;
  std::memcpy(&made.of, from, sizeof made.of);
  return made;
}
inline one_int raw_bits(one_float a) { return {same_bits<int>(a.of)}; }
inline one_mask operator<(one_float a, one_float b) { return {radix_key(a.of) < radix_key(b.of) ? 1 : 0}; }
inline one_mask operator<=(one_float a, one_float b) { return {radix_key(a.of) <= radix_key(b.of) ? 1 : 0}; }
inline one_mask operator==(one_float a, one_float b) { return {radix_key(a.of) == radix_key(b.of) ? 1 : 0}; }
inline one_mask unordered(one_float a, one_float b) {
  return {radix_key(a.of) == nan_key || radix_key(b.of) == nan_key ? 1 : 0};
}

#if defined(__x86_64__)
/// For each mask of eight bits: the indices of its set bits, in ascending order, one byte each.
struct places_of_bits {
  std::uint64_t of[256] = {};
  constexpr places_of_bits() {
    for (unsigned bits = 0; bits < 256; ++bits) {
      int next = 0;
      for (unsigned place = 0; place < 8; ++place) {
        if ((bits >> place & 1u) != 0) of[bits] |= static_cast<std::uint64_t>(place) << (8 * next++);
      }
    }
  }
};
inline constexpr places_of_bits places{};
#endif

#if !defined(KVPOLICY_COMPILED_KERNELS)
namespace portable {
#include <kvpolicy/ops/host/simd/portable.kernel.hpp>
// Then what is written over them.
#include <kvpolicy/ops/host/simd/common.kernel.hpp>
}  // namespace portable
#if defined(__x86_64__)

KVPOLICY_BEGIN_REGION(KVPOLICY_AVX2)
namespace avx2 {
#include <kvpolicy/ops/host/simd/avx2.kernel.hpp>
// Then what is written over them.
#include <kvpolicy/ops/host/simd/common.kernel.hpp>
}  // namespace avx2
KVPOLICY_END_REGION

KVPOLICY_BEGIN_REGION(KVPOLICY_AVX512)
namespace avx512 {
#include <kvpolicy/ops/host/simd/avx512.kernel.hpp>
// Then what is written over them.
#include <kvpolicy/ops/host/simd/common.kernel.hpp>
}  // namespace avx512
KVPOLICY_END_REGION

#else
namespace avx2 = portable;
namespace avx512 = portable;
#endif
#endif

}  // namespace KVPOLICY_NAMESPACE::detail
