// SPDX-License-Identifier: Apache-2.0
// Copies a session's memory from a store into a state, and back.
#pragma once

#include <concepts>
#include <cstddef>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/executor.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/session/session_store.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Checks that the lease holds a memory of the shape of the state's columns, and that the state has the sequence.
template <class Executor>
void check_lease(char const* call, state<Executor> const& state, int sequence, session_lease const& lease) {
  lanes const& batch = state.lanes();
  expects(static_cast<bool>(lease), call, "lease", "empty", "it holds the memory of a session");
  expects(sequence >= 0 && sequence < batch.sequences, call, "sequence", sequence,
          [&] { return std::string("the state has ").append(std::to_string(batch.sequences)); });
  memory_shape const needed{batch.layers(), state.model().query_heads, state.model().head_dim};
  expects(
      lease.extents() == needed, call, "memory", [&] { return to_string(lease.extents()); },
      [&] { return std::string("the state's is ").append(to_string(needed)); });
  expects(state.session_bytes() == needed.floats() * sizeof(float), call, "state.session_bytes", state.session_bytes(),
          [&] {
            return std::string("a memory ").append(to_string(needed)).append(" and nothing else is kept of a session");
          });
}

}  // namespace detail

/// Continues a session in a sequence of the batch: copies the lease's floats into the state. The zeros of a new session
/// clear the memory of the sequence that had this place in the batch before.
///
/// - in: a sequence of the state's batch, and a state whose only columns per session are those of the query memory.
/// - stream: the executor's copies are done when the call returns.
/// - throws: `invalid_argument` if the lease holds no memory, the state does not have the sequence, or the memory
///   belongs to another model. Nothing is changed then.
template <executor Executor>
void restore(Executor& exec, state<Executor>& into, int sequence, session_lease const& lease) {
  detail::sole_use const in_use("restore", exec);
  detail::check_lease("restore", into, sequence, lease);
  into.load_session(exec, sequence, reinterpret_cast<std::byte const*>(lease.floats().data()));
}

/// Ends the turn of a sequence: copies its memory from the state into the lease, and commits the lease.
///
/// - stream: as `restore`.
/// - throws: `invalid_argument` as `restore` does, or if the memory has an infinite or NaN float. The store then still
///   has the session's old memory, and gets the session back when the lease is destroyed.
template <executor Executor>
void keep(Executor& exec, state<Executor> const& from, int sequence, session_lease& lease) {
  detail::sole_use const in_use("keep", exec);
  detail::check_lease("keep", from, sequence, lease);
  from.save_session(exec, sequence, reinterpret_cast<std::byte*>(lease.floats().data()));
  lease.commit();
}

}  // namespace KVPOLICY_NAMESPACE
