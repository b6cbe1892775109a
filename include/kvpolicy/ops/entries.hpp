// SPDX-License-Identifier: Apache-2.0
// Verbs that change how many entries a lane has: append, commit, truncate, and the counts after an eviction.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

/// New entries of one sequence. The engine writes their rows, at the places after each lane's last entry, before
/// anything reads them.
struct append_request {
  int sequence = 0;
  int tokens = 0;
  int position = 0;        ///< logical position of the first new entry; the others have the next positions
  bool in_flight = false;  ///< drafts: they are neither observed nor candidates until they are committed
};

namespace ops {

/// `append_entries(exec, lanes, columns, new, epochs)`: writes positions and zeroed columns of the new entries, then
/// counts, and raises the epochs, if they are given.
///
/// - throws: `invalid_argument` if a lane would exceed its bound, if positions would not ascend, or if a committed
///   entry would follow a draft. Then nothing was changed.
struct append_entries_t : verb<append_entries_t> {
  static constexpr void check(lanes const&, std::span<recorded_column const>, append_request,
                              by_lane<std::uint64_t> const& = {}) {}
};
inline constexpr append_entries_t append_entries{};

/// `truncate_entries(exec, lanes, sequence, position, epochs)`: removes the entries of a sequence at `position` and
/// later, and raises the epochs, if they are given. Drafts are the last entries, so they are removed first.
struct truncate_entries_t : verb<truncate_entries_t> {
  static constexpr void check(lanes const&, int, int, by_lane<std::uint64_t> const& = {}) {}
};
inline constexpr truncate_entries_t truncate_entries{};

/// `commit_entries(exec, lanes, sequence, tokens)`: commits the oldest `tokens` drafts of a sequence.
///
/// - throws: `invalid_argument` if the sequence has fewer drafts, or the number is negative. Then nothing was changed.
struct commit_entries_t : verb<commit_entries_t> {
  static constexpr void check(lanes const&, int, int) {}
};
inline constexpr commit_entries_t commit_entries{};

/// `raise_epochs(exec, lanes, epochs, changed)`: raises the epoch of each sequence and layer of the lanes, because a
/// call has changed them. Keep sets that were decided before are stale then.
///
/// - in: `changed` has a number for each sequence, in the executor's memory: it has changed if the number is not 0.
///   Null: all have.
struct raise_epochs_t : verb<raise_epochs_t> {
  static constexpr void check(lanes const&, by_lane<std::uint64_t> const&, int const*) {}
};
inline constexpr raise_epochs_t raise_epochs{};

/// `refuse_stale(exec, lanes, keep)`: throws `invalid_argument` if the keep set was decided for other counts than those
/// of the lanes, or if `keep.epochs` says that the lanes have changed since.
struct refuse_stale_t : verb<refuse_stale_t> {
  static constexpr void check(lanes const&, keep_set const&) {}
};
inline constexpr refuse_stale_t refuse_stale{};

/// `refuse_ragged(exec, lanes, keep)`: throws `invalid_argument` if lanes of one sequence keep different numbers of
/// entries.
struct refuse_ragged_t : verb<refuse_ragged_t> {
  static constexpr void check(lanes const&, keep_set const&) {}
};
inline constexpr refuse_ragged_t refuse_ragged{};

/// `set_counts(exec, lanes, keep)`: sets the count of every lane to its number of kept entries plus its drafts.
struct set_counts_t : verb<set_counts_t> {
  static constexpr void check(lanes const&, keep_set const&) {}
};
inline constexpr set_counts_t set_counts{};

/// `free_tails(exec, keep, cache, freed)`: adds to `freed` the entries of those whole units that are empty once the
/// kept entries are at the front. A unit that several lanes share is empty when all of them have left it.
struct free_tails_t : verb<free_tails_t> {
  static constexpr void check(keep_set const&, cache const&, std::int64_t*) {}
};
inline constexpr free_tails_t free_tails{};

/// `clear_stats(exec, stats)`: sets all counts to zero.
struct clear_stats_t : verb<clear_stats_t> {
  static constexpr void check(apply_stats*) {}
};
inline constexpr clear_stats_t clear_stats{};

/// `add_counters(exec, from, count, to, anew)`: adds each of `count` numbers to that of `to`, or replaces it if `anew`.
struct add_counters_t : verb<add_counters_t> {
  static constexpr void check(std::int64_t const*, int, std::int64_t*, bool) {}
};
inline constexpr add_counters_t add_counters{};

/// `count_kept(exec, keep, lanes, masked, stats)`: adds to `stats` the number of kept entries, and the number of
/// entries that attention will read. These are the entries of each lane, or, if `masked`, every position up to that of
/// the lane's last entry. It is called after the counts were changed.
struct count_kept_t : verb<count_kept_t> {
  static constexpr void check(keep_set const&, lanes const&, bool, apply_stats*) {}
};
inline constexpr count_kept_t count_kept{};

}  // namespace ops

namespace detail {

/// Tells the plans of a state that the lanes of a batch have changed.
template <executor Executor>
void raise_epochs(Executor& exec, state<Executor>& of, lanes const& batch, int const* changed = nullptr) {
  ops::raise_epochs(exec, batch, of.epochs(batch.slots), changed);
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
