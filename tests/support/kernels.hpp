#pragma once

#include <kvpolicy/kvpolicy.hpp>

// What many tests instantiate is compiled once: the kernels of blocks in kernels.cpp, and the shipped policies by name
// in registry.cpp.
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

namespace kvpolicy {

extern template basic_registry<host_executor> shipped<host_executor>();
extern template any_policy parse<host_executor>(std::string_view, registry const&);

}  // namespace kvpolicy
