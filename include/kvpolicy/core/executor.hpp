// What an executor is: where work runs, and who owns scratch memory.
#pragma once

#include <concepts>
#include <cstddef>
#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE {

/// Comes first in every call. Names its backend, makes buffers in its own memory, and owns scratch that is sized by
/// `reserve` when plans and states are made; after that a decision allocates nothing. One executor per stream, not
/// shared between threads.
template <class E>
concept executor = requires(E& exec, std::size_t bytes, std::byte* to, std::byte const* from) {
  typename E::backend;
  typename E::template buffer<float>;
  exec.reserve(bytes);
  { exec.reserved() } -> std::convertible_to<std::size_t>;
  exec.copy(to, from, bytes);
};

}  // namespace KVPOLICY_NAMESPACE
