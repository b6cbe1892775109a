#pragma once

#include <kvpolicy/kvpolicy.hpp>

// The kernels of blocks are compiled once for all tests, in kernels.cpp.
namespace kvpolicy::detail {

extern template struct portable_blocks<4>;
extern template struct portable_blocks<16>;
extern template struct portable_blocks<32>;
#if defined(__x86_64__)
extern template struct avx2_blocks<4>;
extern template struct avx2_blocks<16>;
extern template struct avx2_blocks<32>;
extern template struct avx512_blocks<16>;
extern template struct avx512_blocks<32>;
#endif

}  // namespace kvpolicy::detail
