// The concept `executor`: where work runs, and the owner of scratch memory.
#pragma once

#include <concepts>
#include <cstddef>
#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE {

/// An executor is the first argument of every call. It names its backend, allocates buffers in its own memory, and owns
/// the scratch memory. `make_plan` and `make_state` size the scratch with `reserve`, so that a decision allocates
/// nothing. Use one executor for each stream, and do not share it between threads.
template <class E>
concept executor = requires(E& exec, std::size_t bytes, std::byte* to, std::byte const* from) {
  typename E::backend;
  typename E::template buffer<float>;
  exec.reserve(bytes);
  { exec.reserved() } -> std::convertible_to<std::size_t>;
  exec.copy(to, from, bytes);
};

}  // namespace KVPOLICY_NAMESPACE
