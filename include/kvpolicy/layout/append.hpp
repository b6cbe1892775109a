// SPDX-License-Identifier: Apache-2.0
// `append`, `commit` and `truncate` add and remove entries at the end of a lane.
#pragma once

#include <kvpolicy/core/contract/check.hpp>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// Refuses some layers of lanes whose layers have something in common: their counts, their positions, or drafts, which
/// are counted for each sequence. A call about some of them would change the others.
template <executor Executor>
void check_layers(char const* call, cache const& in, state<Executor> const& state) {
  check_whole(call, in.lanes, in.shape);
  int const all = state.lanes().layers();
  bool const shared = in.lanes.count.layer == 0 || in.lanes.position.layer == 0;
  expects(!shared || in.lanes.layers() == all, call, "lanes.layers", in.lanes.layers(),
          [&] { return "its " + std::to_string(all) + " layers share their counts or positions"; });
}

template <executor Executor>
void check_append(char const* call, cache const& in, state<Executor> const& state, append_request const& new_tokens) {
  check_shape(call, in.shape);
  check_lanes(call, in.lanes, in.shape);
  check_sequence(call, in.lanes, new_tokens.sequence);
  expects(new_tokens.tokens >= 0, call, "tokens", new_tokens.tokens, "a count cannot be negative");
  expects(new_tokens.position >= 0, call, "position", new_tokens.position, "positions start at 0");
  expects(new_tokens.position <= std::numeric_limits<int>::max() - new_tokens.tokens, call, "position",
          new_tokens.position, "the last new position does not fit into 32 bits");
  check_same_lanes(call, "cache.lanes", in.lanes, state.lanes());
  check_layers(call, in, state);
  int const slot = host_slot<typename Executor::backend>(in.lanes, new_tokens.sequence);
  expects(
      new_tokens.position > 0 || new_tokens.tokens == 0 || slot < 0 || !state.history().used(slot), call, "position",
      [&] { return "0 in slot " + std::to_string(slot); },
      "the slot holds the state of an earlier request: reset it before the next one, or truncate to position 0");
}

/// Adds the entries after `check_append`.
template <executor Executor>
void append_checked(Executor& exec, cache const& in, state<Executor>& state, append_request const& new_tokens) {
  ops::append_entries(exec, in.lanes, state.columns(in.lanes), new_tokens, state.epochs(in.lanes.slots));
  int const slot = host_slot<typename Executor::backend>(in.lanes, new_tokens.sequence);
  if (slot >= 0 && new_tokens.tokens > 0) state.history().use(slot);
}

/// Refuses what a verb finds in data, before it is run, if the backend can do so apart.
template <class Verb, executor Executor, class... Args>
void refuse_verb([[maybe_unused]] Executor& exec, [[maybe_unused]] Args const&... args) {
  using verb = implementation<Verb, typename Executor::backend>;
  if constexpr (requires { verb::refuse(exec, args...); }) verb::refuse(exec, args...);
}

inline void check_commit(cache const& in, int sequence) {
  check_sequence("commit", in.lanes, sequence);
  check_whole("commit", in.lanes, in.shape);
}

/// Refuses everything that `truncate` refuses. Nothing is changed.
template <executor Executor>
void check_truncate(Executor& exec, cache const& in, state<Executor> const& state, int sequence, int position) {
  check_shape("truncate", in.shape);
  check_lanes("truncate", in.lanes, in.shape);
  check_sequence("truncate", in.lanes, sequence);
  expects(position >= 0, "truncate", "position", position, "positions start at 0");
  check_same_lanes("truncate", "cache.lanes", in.lanes, state.lanes());
  check_layers("truncate", in, state);
  refuse_verb<ops::truncate_entries_t>(exec, in.lanes, sequence, position);
}

/// Rolls a sequence back after `check_truncate`.
template <executor Executor>
void truncate_checked(Executor& exec, cache const& in, state<Executor>& state, int sequence, int position) {
  ops::truncate_entries(exec, in.lanes, sequence, position, state.epochs(in.lanes.slots));
  state.forget(exec, in.lanes, sequence, position);
  int slot = host_slot<typename Executor::backend>(in.lanes, sequence);
  if (slot >= 0) state.history().truncate(slot, position, in.lanes.layer_begin, in.lanes.layer_end);
  if (position > 0 || state.session_bytes() == 0) return;
  if (slot < 0) {  // only the executor can read the list
    exec.copy(reinterpret_cast<std::byte*>(&slot), reinterpret_cast<std::byte const*>(in.lanes.slots + sequence),
              sizeof slot);
    if constexpr (requires { exec.synchronize(); }) exec.synchronize();
  }
  state.clear(exec, slot, in.lanes.layer_begin, in.lanes.layer_end, column_extent::session);
}

}  // namespace detail

/// Adds new entries of one sequence to the counts, the positions and the state. The engine writes their rows at the
/// places after each lane's last entry, before this call or at least before anything reads them. Recorded columns of
/// new entries start at zero.
///
/// - throws: `invalid_argument` if a lane would exceed its bound, if positions do not ascend, if drafts are in flight
///   and ordinary entries would follow them, or if the entries begin at position 0 of a slot that another request used
///   without a `reset` after it. Then nothing was changed.
template <executor Executor>
void append(Executor& exec, cache& in, state<Executor>& state, append_request const& new_tokens) {
  detail::sole_use const in_use("append", exec);
  detail::check_append("append", in, state, new_tokens);
  detail::append_checked(exec, in, state, new_tokens);
}

/// Makes the oldest `tokens` drafts of a sequence ordinary entries, after they were accepted. Remove rejected drafts
/// with `truncate` before, and call `observe` for the accepted ones afterwards.
///
/// - throws: `invalid_argument` if fewer drafts are in flight.
template <executor Executor>
void commit(Executor& exec, cache& in, int sequence, int tokens) {
  detail::check_commit(in, sequence);
  ops::commit_entries(exec, in.lanes, sequence, tokens);
}

/// Rolls a sequence back: removes the entries at logical position `position` and after it from every lane. At position
/// 0 the sequence is as after a `reset`: the memory of its session is dropped, too.
///
/// The effect of removed tokens on recorded columns of other entries (accumulated attention mass) is not undone. Drafts
/// have no such effect, because they were never observed. Rows of a query ring that were rolled back are removed.
/// - throws: `invalid_argument` if the sequence or the position is out of range, or if a removed token has taken the
///   place of a dropped one (`lane_order`; `restore_order` sorts the entries). Then nothing was changed.
template <executor Executor>
void truncate(Executor& exec, cache& in, state<Executor>& state, int sequence, int position) {
  detail::sole_use const in_use("truncate", exec);
  detail::check_truncate(exec, in, state, sequence, position);
  detail::truncate_checked(exec, in, state, sequence, position);
}

}  // namespace KVPOLICY_NAMESPACE
