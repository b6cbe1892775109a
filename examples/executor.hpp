// SPDX-License-Identifier: Apache-2.0
// The executor on which the examples run their policies: the host, or, if built by nvcc, a GPU that reads host memory.
#pragma once

#include <kvpolicy/kvpolicy.hpp>

#if defined(__CUDACC__)
#include "shared_memory.cuh"
#elif defined(KVPOLICY_EXAMPLES_EXECUTOR)
#include KVPOLICY_EXAMPLES_EXECUTOR
#else
namespace examples {
using executor = kvpolicy::host_executor;
inline constexpr char const* device_name = "cpu";
}  // namespace examples
#endif

namespace examples {

/// Makes the executor. Only that of the host has a number of threads.
template <class Executor = executor>
[[nodiscard]] Executor make_executor([[maybe_unused]] int threads) {
  if constexpr (std::same_as<Executor, kvpolicy::host_executor>) {
    return Executor(threads);
  } else {
    return Executor();
  }
}

/// The host executor for the examples' own work: `exec` itself if it is one.
template <class Executor>
[[nodiscard]] kvpolicy::host_executor& host_of([[maybe_unused]] Executor& exec) {
  if constexpr (std::same_as<Executor, kvpolicy::host_executor>) {
    return exec;
  } else {
    static thread_local kvpolicy::host_executor host;
    return host;
  }
}

/// Throws the errors that a device has found in its data. A host executor has thrown them already.
template <class Executor>
void settle(Executor& exec) {
  if constexpr (requires { exec.check(); }) exec.check();
}

}  // namespace examples
