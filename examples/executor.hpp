// Where the examples run their policies: on the host, or, built by nvcc, on a GPU that reads the host's own memory.
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

/// The executor. Only the host's has threads to choose.
template <class Executor = executor>
[[nodiscard]] Executor make_executor([[maybe_unused]] int threads) {
  if constexpr (std::same_as<Executor, kvpolicy::host_executor>) {
    return Executor(threads);
  } else {
    return Executor();
  }
}

/// Where the examples' own work runs, which is on the host: the executor itself, if it is the host's.
template <class Executor>
[[nodiscard]] kvpolicy::host_executor& host_of([[maybe_unused]] Executor& exec) {
  if constexpr (std::same_as<Executor, kvpolicy::host_executor>) {
    return exec;
  } else {
    static thread_local kvpolicy::host_executor host;
    return host;
  }
}

/// Throws what a device found wrong with its data; a host has thrown it already.
template <class Executor>
void settle(Executor& exec) {
  if constexpr (requires { exec.check(); }) exec.check();
}

}  // namespace examples
