// SPDX-License-Identifier: Apache-2.0
// The two macros that every other header may use.
#pragma once

#if (defined(_MSVC_LANG) ? _MSVC_LANG : __cplusplus) < 202002L
#error "kvpolicy needs C++20: -std=c++20"
#endif
#if !defined(__cpp_exceptions)
#error "kvpolicy reports a caller's mistakes by exceptions: compile with -fexceptions"
#endif

#if defined(__CUDACC__)
/// Marks a function that is compiled for host and device.
#define KVPOLICY_HD __host__ __device__
#else
#define KVPOLICY_HD
#endif

/// Names the library's versioned inline namespace: `namespace KVPOLICY_NAMESPACE { ... }`.
#define KVPOLICY_NAMESPACE kvpolicy::inline v0
