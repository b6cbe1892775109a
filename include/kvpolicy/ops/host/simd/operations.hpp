// SPDX-License-Identifier: Apache-2.0
// Vectors of an instruction set, and what can be done with them.
//
// A kernel is written once, over the types and functions below, in a file that `simd/each_isa.hpp` compiles for each
// instruction set, in a namespace and a target of its own. `portable.kernel.hpp`, `avx2.kernel.hpp` and
// `avx512.kernel.hpp` define the types and the functions that need intrinsics, and `common.kernel.hpp` the others.
//
// Types and constants
//   floats, ints, doubles    `width` numbers of 32 bits, or `width / 2` doubles; `raw` is the register
//   mask                     a truth value for each of `width` numbers
//   four                     four floats, whatever the width: the rows of a small block
//   has_integers             integers can be gathered and packed; elsewhere passes over lists go entry by entry
//   has_f16                  one instruction converts f16; portable code converts with several, and `norms` uses
//                            `even_f16` and `odd_f16` instead
//   has_scaling              `scale_by_power` takes its exponents as floats, so `nearest_exponent` can be used
//
// Loops. `kind` is vector_tag{} for `width` entries, and scalar_tag{} for one. With a kind, `load`, `splat`, `iota`,
// `load_elements`, `nonzero`, `width_of`, `count_bits` and `prefetch` are about so many entries.
//   unrolled<N>(f)           f(0), f(1), ..., f(N - 1), each with a constant
//   for_each_vector(begin, end, f)            f(kind, i) for whole vectors, and then for each entry after them;
//   for_each_vector<has_integers>(...)        without vectors where these have no integers
//
// Loads and stores, from and to any address
//   load(p), store(v, p)     by the type of the pointer: floats, ints or doubles
//   load_into_register(p)    floats, which g++ would else read again for every operation that uses them
//   load_elements<E>(kind, p), store_elements<E>(v, p)   floats of the type E, rounded to nearest even; NaN stays NaN
//   load_f16, load_bf16, store_f16, store_bf16           what these are made of
//   load_words(p)            ints: neighbouring 16-bit numbers, which `even_*` and `odd_*` convert to floats: the lower
//                            and the upper number of each pair; `even_f16` and `odd_f16` give magnitudes
//   load_widened(p)          doubles of half a vector of floats; `lower_widened`, `upper_widened`: of half of v
//   load_columns(row, column)     vector i of four gets number i of `width` rows; row r begins at row(r)
//   padded<Bytes>(p, bytes)  the last bytes of a row, and zeros after them, for the loads of one pass
//   splat(x), splat_four(p)  x, or the four floats at p, again and again
//   iota(kind, first)        first, first + 1, ...
//   gather(map, at)          map[at[i]]
//   gather_nonzero(bytes, at)     a mask: bytes[at[i]] is not 0; up to three bytes after each are read, too
//   nonzero(kind, bytes)     a mask: byte i is not 0
//   compress_store(v, bits, n, room, p)       the n numbers whose bit is set, one after the other; nothing is written
//                            after them, unless there is room for a whole vector
//   stream(ints, p)          to a whole vector's place, whose line is not fetched before; `finish_streams` follows
//   store_roots(doubles, p)  square roots, each rounded to a float
//
// Arithmetic. g++ fuses a product and a sum, unless the product is `mul_rounded` or has passed `keep_rounded`; clang
// fuses only within an expression, and there is none but that of `mul_add`.
//   + - * /
//   mul_add(a, b, c)         a b + c, rounded once where there is such an instruction; add_square(a, b): a a + b
//   mul_rounded(a, b)        a b, rounded
//   max_or_second(a, b)      the larger number; b if either is NaN or both are zero. min_or_second: the smaller one
//   max_nan(a, b)            the larger number; NaN if either is; a if both are zero
//   scale_by_power(p, n)     p 2^n, where n is what `truncate` or `nearest_exponent` returns
//   truncate(a)              rounds towards zero; to_floats(n): the same numbers as floats
//   exp_by(x, n)             e^x to 2 units in the last place, where n is about x / ln 2; 0 for x below -87; NaN stays
//   exp_of_negative(x)       e^x for x that is at most 0 or NaN
//   exp_of_any(x)            e^x; above 88 it is e^88
//   split_power(x, exponent) the mantissa of a positive x, 1 <= m < 2, and its exponent: x = m 2^exponent
//   log_of(x)                ln x to 2 units in the last place, for a positive number that is not subnormal
//   nearest_exponent(x)      the whole number nearest to x / ln 2, as floats
//   tanh_of(x)               to 3 units in the last place; NaN stays, and an infinity becomes 1 or -1
//
// Reductions
//   reduce_add(doubles)      adds the upper half of the vector to the lower one until one number is left, so that all
//                            instruction sets give the same bits
//   reduce_add(floats or four), reduce_max (as max_nan)       the quarters one by one, and then within the last one
//   reduce_min               the least number; no number may be NaN
//   reduce_add_each(a, b, c, d)    the four sums, each added in an order of the instruction set's own
//   quarter<I>(v)            numbers 4 I to 4 I + 3; fold_quarters(v, f) combines all of them, one by one
//   add_pairs(a, b)          sums of neighbours, those of a first; where `has_f16`
//   add_blocks_transposed(a, b, c, d)    AVX-512: each quarter has a sum of each of the four vectors
//   transposed_square(v)     AVX-512: rows of a square of four become its columns
//
// Comparisons and masks
//   == < <= > & | !          comparisons with NaN are false, but not_less(a, b) is true
//   either_is_nan(a, b)      less_unsigned(a, end): as numbers without a sign
//   comparable(v)            v, or a float as a `one_float`, which is compared under -ffast-math, too
//   any(mask)                bits_of(mask): bit i is that of number i; count_bits(kind, bits)
//   choose(mask, yes, no)    choose_or_zero(mask, v): v, and 0 where the mask is false
//   bit_cast_ints(v)         the bits of floats
//   sign_bits(p, less)       a word: bit i is the sign of p[i] - less, for 32 numbers
//   nonzero_bits(p)          a word: bit i is set if byte p[i] is not 0, for 32 bytes that are 0 or 1
//
// Rules. Arrays of vectors are indexed by constants (`unrolled<N>`), or g++ keeps them in memory. A constructor is
// written out, and no member has a default initializer: an implicitly defined constructor is compiled for no target. A
// lambda says KVPOLICY_INLINED. The files of kernels include nothing: their `.hpp` and this file include what they use.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/ops/radix_key.hpp>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// The instruction sets of kvpolicy::isa, as compilers name them. Every processor with AVX-512 has bmi2 and prfchw.
#define KVPOLICY_AVX2 "avx2,fma,f16c"
#define KVPOLICY_AVX512 "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,popcnt,bmi2,prfchw"

// A function whose plain loops become vectors: at -O2 g++ makes vectors of few loops.
#if defined(__GNUC__) && !defined(__clang__)
#define KVPOLICY_VECTORIZED [[gnu::optimize("tree-vectorize", "vect-cost-model=dynamic")]]
#else
#define KVPOLICY_VECTORIZED
#endif

/// Before the type of a function that is inlined everywhere: an operation of vectors, or a part of a kernel.
#define KVPOLICY_OP [[gnu::always_inline]] inline

/// After the parameters of a lambda in a kernel.
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

/// Vectors of `Width` floats and of as many integers or doubles. `get` and `put` read and write memory at any address.
template <int Width>
struct vector_of {
  typedef float floats __attribute__((vector_size(Width * 4)));
  typedef double doubles __attribute__((vector_size(Width * 8)));
  typedef int ints __attribute__((vector_size(Width * 4)));
  typedef std::uint32_t words __attribute__((vector_size(Width * 4)));
  typedef std::uint16_t halves __attribute__((vector_size(Width * 2)));
};

/// A vector at any address. g++ forgets the alignment of a dependent typedef, and its code for memcpy is slow.
template <class Vector>
struct [[gnu::packed, gnu::may_alias]] anywhere {
  Vector value;
};

template <class Vector>
KVPOLICY_OP void load_raw(Vector& to, void const* from) {
  to = static_cast<anywhere<Vector> const*>(from)->value;
}
template <class Vector>
KVPOLICY_OP void store_raw(Vector const& from, void* to) {
  static_cast<anywhere<Vector>*>(to)->value = from;
}

/// Keeps numbers that were read, and that more than one operation uses, in a register. Otherwise g++ reads them again
/// for each operation, and a processor reads fewer whole cache lines in a cycle than it has operations for them.
template <class Vector>
KVPOLICY_OP void keep_in_register(Vector& read) {
#if defined(__x86_64__) && !defined(__clang__) && !defined(__CUDACC__)
  asm("" : "+v"(read));
#else
  static_cast<void>(read);
#endif
}

/// Follows the last `stream`, so that other threads see what was written.
inline void finish_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

/// The last bytes of a row, and zeros after them.
template <int Bytes>
struct zero_padded {
  alignas(64) std::byte of[static_cast<std::size_t>(Bytes)];

  zero_padded(std::byte const* from, int bytes) {
    std::memset(of, 0, static_cast<std::size_t>(Bytes));
    std::memcpy(of, from, static_cast<std::size_t>(bytes));
  }
  [[nodiscard]] std::byte const* begin() const { return of; }
};

// What a loop passes to its body, to say whether it is about a vector of entries or about one of those after the last
// whole vector.
struct vector_tag {};
struct scalar_tag {};

/// An int that is compared as vectors are. The result is an int, too: loops over it have no branch, and compilers
/// vectorise them.
struct one_int {
  int raw;
};
struct one_mask {
  int raw;  ///< 0 or 1
};
/// A float that is compared by its key, so NaN is found under -ffast-math, too.
struct one_float {
  float raw;
};

constexpr int width_of(scalar_tag) { return 1; }
inline void prefetch(scalar_tag, void const*) {}  // one entry after another needs no prefetch
KVPOLICY_OP void prefetch(vector_tag, void const* line) { __builtin_prefetch(line); }
inline one_int load(scalar_tag, int const* from) { return {*from}; }
KVPOLICY_OP float load(scalar_tag, float const* from) { return *from; }
inline one_int splat(scalar_tag, int value) { return {value}; }
KVPOLICY_OP float splat(scalar_tag, float value) { return value; }
inline one_int iota(scalar_tag, int first) { return {first}; }
inline one_mask nonzero(scalar_tag, unsigned char const* marks) { return {*marks != 0 ? 1 : 0}; }
inline int count_bits(scalar_tag, unsigned bits) { return static_cast<int>(bits); }
KVPOLICY_OP int count_bits(vector_tag, unsigned bits) { return __builtin_popcount(bits); }
inline void store(one_int some, int* to) { *to = some.raw; }
inline one_int gather(int const* map, one_int at) { return {map[at.raw]}; }
inline one_mask gather_nonzero(unsigned char const* bytes, one_int at) { return {bytes[at.raw] != 0 ? 1 : 0}; }
inline one_int bit_cast_ints(one_float a) { return {same_bits<int>(a.raw)}; }
inline one_int choose(one_mask which, one_int yes, one_int no) { return which.raw != 0 ? yes : no; }
/// If the list has no room left, it is complete, so nothing is selected. Therefore the entry itself needs no branch.
inline void compress_store(one_int some, unsigned, int, bool room, int* to) {
  if (room) *to = some.raw;
}

inline one_mask operator==(one_int a, one_int b) { return {a.raw == b.raw ? 1 : 0}; }
inline one_mask operator>(one_int a, one_int b) { return {a.raw > b.raw ? 1 : 0}; }
inline one_mask less_unsigned(one_int a, one_int end) {
  return {static_cast<unsigned>(a.raw) < static_cast<unsigned>(end.raw) ? 1 : 0};
}
inline one_mask operator<(one_float a, one_float b) { return {radix_key(a.raw) < radix_key(b.raw) ? 1 : 0}; }
inline one_mask operator<=(one_float a, one_float b) { return {radix_key(a.raw) <= radix_key(b.raw) ? 1 : 0}; }
inline one_mask operator==(one_float a, one_float b) { return {radix_key(a.raw) == radix_key(b.raw) ? 1 : 0}; }
inline one_mask either_is_nan(one_float a, one_float b) {
  return {radix_key(a.raw) == nan_key || radix_key(b.raw) == nan_key ? 1 : 0};
}
inline one_mask operator|(one_mask a, one_mask b) { return {a.raw | b.raw}; }
inline one_mask operator!(one_mask a) { return {1 - a.raw}; }
inline bool any(one_mask a) { return a.raw != 0; }
inline unsigned bits_of(one_mask a) { return static_cast<unsigned>(a.raw); }

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
