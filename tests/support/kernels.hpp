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

namespace detail {

extern template void observe_given(host_executor&, any_policy const&, any_signals const&, state<host_executor>&);
extern template void decide_given(host_executor&, any_policy const&, any_signals const&, state<host_executor> const&,
                                  plan<host_executor>&);

}  // namespace detail

extern template state<host_executor> make_state(host_executor&, any_policy const&, cache const&, int);
extern template basic_registry<host_executor> shipped<host_executor>();
extern template any_policy parse<host_executor>(std::string_view, registry const&);

}  // namespace kvpolicy
