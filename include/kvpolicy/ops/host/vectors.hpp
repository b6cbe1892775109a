// SPDX-License-Identifier: Apache-2.0
// Vectors as compiler extensions, and the names of instruction sets: what simd/operations.hpp is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/codec.hpp>

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

}  // namespace KVPOLICY_NAMESPACE::detail
