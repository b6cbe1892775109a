// How a lane grows and shrinks at its end: append, commit, truncate.
#pragma once

#include <kvpolicy/core/check.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {

namespace detail {

template <executor Executor>
void check_append(char const* call, cache const& in, state<Executor> const& held, appended const& fresh) {
  check_shape(call, in.shape);
  check_lanes(call, in.who, in.shape);
  expects(fresh.sequence >= 0 && fresh.sequence < in.who.sequences, call, "sequence", fresh.sequence,
          [&] { return "the batch has " + std::to_string(in.who.sequences) + " sequences"; });
  expects(fresh.tokens >= 0, call, "tokens", fresh.tokens, "a count cannot be negative");
  expects(fresh.position >= 0, call, "position", fresh.position, "positions start at 0");
  expects(fresh.position <= std::numeric_limits<int>::max() - fresh.tokens, call, "position", fresh.position,
          "the last new position does not fit into 32 bits");
  check_same_lanes(call, "cache.who", in.who, held.who());
  check_whole(call, in.who, in.shape);
}

}  // namespace detail

/// Tells the cache and the state of new entries, which the engine has written (or will, before anything reads them) at
/// the places behind each lane's last entry. Recorded columns of new entries start at zero.
///
/// - throws: `invalid_argument` if a lane has no room, positions do not ascend, or drafts stand in the way. Then
///   nothing was changed.
template <executor Executor>
void append(Executor& exec, cache& in, state<Executor>& held, appended const& fresh) {
  detail::check_append("append", in, held, fresh);
  ops::append_entries(exec, in.who, std::span<held_column const>(held.columns()), fresh);
}

/// The drafts of a sequence that were accepted become ordinary entries: observe them now. `tokens` of them, the oldest
/// first; truncate away the rest before.
///
/// - throws: `invalid_argument` if fewer drafts are in flight.
template <executor Executor>
void commit(Executor& exec, cache& in, int sequence, int tokens) {
  expects(sequence >= 0 && sequence < in.who.sequences, "commit", "sequence", sequence,
          [&] { return "the batch has " + std::to_string(in.who.sequences) + " sequences"; });
  ops::commit_entries(exec, in.who, sequence, tokens);
}

/// Rolls a sequence back: entries at logical position `position` and after it are gone from every lane.
///
/// What committed tokens did to others' columns (accumulated mass) stays: only drafts leave no trace, because they were
/// never observed. Rows of a query ring that were rolled back are dropped.
/// - throws: `invalid_argument` if the sequence or the position is out of range.
template <executor Executor>
void truncate(Executor& exec, cache& in, state<Executor>& held, int sequence, int position) {
  detail::check_shape("truncate", in.shape);
  detail::check_lanes("truncate", in.who, in.shape);
  expects(sequence >= 0 && sequence < in.who.sequences, "truncate", "sequence", sequence,
          [&] { return "the batch has " + std::to_string(in.who.sequences) + " sequences"; });
  expects(position >= 0, "truncate", "position", position, "positions start at 0");
  detail::check_same_lanes("truncate", "cache.who", in.who, held.who());
  detail::check_whole("truncate", in.who, in.shape);
  ops::truncate_entries(exec, in.who, sequence, position);
  held.forget(exec, in.who, sequence, position);
}

}  // namespace KVPOLICY_NAMESPACE
