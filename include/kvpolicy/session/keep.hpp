// Between a store and a batch: a session's memory goes into a state's columns, and comes back.
#pragma once

#include <concepts>
#include <cstddef>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/executor.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/session/session_store.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The lease holds a memory of the shape that the state's columns have, and the sequence is one of the state's.
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

/// A sequence goes on with what its session remembers: copies the lease's floats into the state. Zeros, of a new
/// session, clear what the sequence's place in the batch held before.
///
/// - in: `sequence` of the state's batch; the state of a policy whose only columns per session are query memories.
/// - stream: the executor's copies are done when they return, as the host's are.
/// - throws: `invalid_argument` if the lease holds no memory, the sequence is none of the state's, or the memory is
///   that of another model. Then nothing was changed.
template <executor Executor>
void restore(Executor& exec, state<Executor>& into, int sequence, session_lease const& lease) {
  detail::check_lease("restore", into, sequence, lease);
  into.load_session(exec, sequence, reinterpret_cast<std::byte const*>(lease.floats().data()));
}

/// A sequence's turn is over: copies what the state remembers of it into the lease, and commits that.
///
/// - stream: as `restore`.
/// - throws: `invalid_argument` as `restore` does, or if what is remembered is infinite or NaN. Then the session still
///   remembers what it did, and is given back when the lease is destroyed.
template <executor Executor>
void keep(Executor& exec, state<Executor> const& from, int sequence, session_lease& lease) {
  detail::check_lease("keep", from, sequence, lease);
  from.save_session(exec, sequence, reinterpret_cast<std::byte*>(lease.floats().data()));
  lease.commit();
}

}  // namespace KVPOLICY_NAMESPACE
