// Vectors of floats as compiler extensions, so that one body serves every instruction set.
//
// A body is an always_inline function template over the number of floats in a vector. A thin function with a target
// attribute contains it, and is chosen at run time, so that users need no compiler flag. No vector is passed by value,
// and no body has a lambda: both would be compiled for one instruction set before they are inlined into another.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/codec.hpp>

// The instruction sets of kvpolicy::isa, as compilers name them. Every processor with AVX-512 has bmi2 and prfchw.
#define KVPOLICY_AVX2 "avx2,fma,f16c"
#define KVPOLICY_AVX512 "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,popcnt,bmi2,prfchw"

// A function whose plain loops become vectors: at -O2 g++ makes vectors of few loops.
#if defined(__GNUC__) && !defined(__clang__)
#define KVPOLICY_VECTORIZED [[gnu::optimize("tree-vectorize", "vect-cost-model=dynamic")]]
// The same with vectors of 512 bits, and without their fused multiply-add, so that a function gives the same bits as
// with other vectors. clang decides about fused operations where the function itself is written.
#define KVPOLICY_VECTORIZED_512                                                    \
  [[gnu::optimize("tree-vectorize", "vect-cost-model=dynamic", "fp-contract=off"), \
    gnu::target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")]]
#else
#define KVPOLICY_VECTORIZED
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
[[gnu::always_inline]] inline void get(Vector& to, void const* from) {
  to = static_cast<anywhere<Vector> const*>(from)->value;
}

/// Keeps numbers that more than one operation uses in a register. g++ else reads them from memory again for each of
/// these, and a processor reads fewer whole cache lines in a cycle than it has operations for them.
template <class Vector>
[[gnu::always_inline]] inline void once(Vector& read) {
#if defined(__x86_64__) && !defined(__clang__) && !defined(__CUDACC__)
  asm("" : "+v"(read));
#else
  static_cast<void>(read);
#endif
}

template <class Vector>
[[gnu::always_inline]] inline void get_once(Vector& to, void const* from) {
  get(to, from);
  once(to);
}

template <class Vector>
[[gnu::always_inline]] inline void put(Vector const& from, void* to) {
  static_cast<anywhere<Vector>*>(to)->value = from;
}

/// Computes e^f for f from -ln 2 / 2 to ln 2 / 2.
template <int Width>
[[gnu::always_inline]] inline void exp_near_zero(typename vector_of<Width>::floats const& f,
                                                 typename vector_of<Width>::floats& p) {
  p = f * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
}

/// Computes e^x for -87 <= x <= 88. `turns` is x / ln 2, shifted by one half so that truncation rounds it to the
/// nearest integer.
template <int Width>
[[gnu::always_inline]] inline void exp_inside(typename vector_of<Width>::floats& x,
                                              typename vector_of<Width>::floats const& turns) {
  using floats = typename vector_of<Width>::floats;
  using ints = typename vector_of<Width>::ints;
  using words = typename vector_of<Width>::words;
  ints const whole = __builtin_convertvector(turns, ints);
  floats const n = __builtin_convertvector(whole, floats);
  floats const f = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  floats p;
  exp_near_zero<Width>(f, p);
  // Unsigned: entries that a row does not see may be far above its maximum, and their results are dropped.
  words const bits = __builtin_bit_cast(words, p) + (__builtin_bit_cast(words, whole) << 23);
  x = __builtin_bit_cast(floats, bits);
}

/// Replaces x, which is at most 0 or NaN, by e^x, to 2 units in the last place; below -87 the result is 0.
template <int Width>
[[gnu::always_inline]] inline void exp_of_negative(typename vector_of<Width>::floats& x) {
  using floats = typename vector_of<Width>::floats;
  typename vector_of<Width>::ints const vanishes = x < -87.0f;
  x = vanishes ? floats{} - 87.0f : x;
  exp_inside<Width>(x, x * 1.44269504f - 0.5f);
  x = vanishes ? floats{} : x;
}

}  // namespace KVPOLICY_NAMESPACE::detail
