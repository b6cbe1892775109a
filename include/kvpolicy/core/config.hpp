// The two macros that every other header may need.
#pragma once

#if !defined(__cpp_exceptions)
#error "kvpolicy reports a caller's mistakes by exceptions: compile with -fexceptions"
#endif

#if defined(__CUDACC__)
/// Marks a function that is compiled for host and device.
#define KVPOLICY_HD __host__ __device__
#else
#define KVPOLICY_HD
#endif

/// Opens the library's versioned namespace; close it with two braces' worth of `}`.
#define KVPOLICY_NAMESPACE kvpolicy::inline v0
