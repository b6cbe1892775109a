#include "support/kernels.hpp"

namespace kvpolicy::detail {

template struct portable_blocks<4>;
template struct portable_blocks<16>;
template struct portable_blocks<32>;
#if defined(__x86_64__)
template struct avx2_blocks<4>;
template struct avx2_blocks<16>;
template struct avx2_blocks<32>;
template struct avx512_blocks<16>;
template struct avx512_blocks<32>;
#endif

}  // namespace kvpolicy::detail
