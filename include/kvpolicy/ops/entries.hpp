// Verbs that change how many entries a lane holds: append, commit, truncate, and the counts after an eviction.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

/// New entries of one sequence, already written by the engine at the places behind the lane's last entry.
struct append_request {
  int sequence = 0;
  int tokens = 0;
  int position = 0;        ///< logical position of the first of them; the others follow it
  bool in_flight = false;  ///< drafts: not observed and never candidates until they are committed
};

namespace ops {

/// `append_entries(exec, lanes, columns, new)`: positions and zeroed columns for new entries, counts last.
/// - throws: `invalid_argument` if a lane would exceed its bound, positions would not ascend, or a committed entry
///   would stand behind a draft. Then nothing was changed.
struct append_entries_t : verb<append_entries_t> {
  static constexpr void check(lanes const&, std::span<recorded_column const>, append_request) {}
};
inline constexpr append_entries_t append_entries{};

/// `truncate_entries(exec, lanes, sequence, position)`: entries at `position` and after it are gone, drafts first.
struct truncate_entries_t : verb<truncate_entries_t> {
  static constexpr void check(lanes const&, int, int) {}
};
inline constexpr truncate_entries_t truncate_entries{};

/// `commit_entries(exec, lanes, sequence, tokens)`: the oldest `tokens` drafts of a sequence are drafts no more.
/// - throws: `invalid_argument` if fewer are in flight, or the number is negative. Then nothing was changed.
struct commit_entries_t : verb<commit_entries_t> {
  static constexpr void check(lanes const&, int, int) {}
};
inline constexpr commit_entries_t commit_entries{};

/// `refuse_stale(exec, lanes, keep)`: a keep set made for other counts than these is refused.
struct refuse_stale_t : verb<refuse_stale_t> {
  static constexpr void check(lanes const&, keep_set const&) {}
};
inline constexpr refuse_stale_t refuse_stale{};

/// `refuse_ragged(exec, lanes, keep)`: lanes of one sequence that keep different numbers of entries are refused.
struct refuse_ragged_t : verb<refuse_ragged_t> {
  static constexpr void check(lanes const&, keep_set const&) {}
};
inline constexpr refuse_ragged_t refuse_ragged{};

/// `set_counts(exec, lanes, keep)`: every lane holds what was kept, and its drafts.
struct set_counts_t : verb<set_counts_t> {
  static constexpr void check(lanes const&, keep_set const&) {}
};
inline constexpr set_counts_t set_counts{};

/// `free_tails(exec, keep, cache, freed)`: `freed` grows by the entries that fit into whole units behind what is kept;
/// a unit that several lanes share is free when all of them have left it.
struct free_tails_t : verb<free_tails_t> {
  static constexpr void check(keep_set const&, cache const&, std::int64_t*) {}
};
inline constexpr free_tails_t free_tails{};

/// `clear_stats(exec, stats)`: nothing has been told yet.
struct clear_stats_t : verb<clear_stats_t> {
  static constexpr void check(apply_stats*) {}
};
inline constexpr clear_stats_t clear_stats{};

/// `count_kept(exec, keep, lanes, masked, stats)`: `stats` counts the entries that are kept, and those that attention
/// will read: the entries that are there, or with `masked` every position up to that of a lane's last entry.
struct count_kept_t : verb<count_kept_t> {
  static constexpr void check(keep_set const&, lanes const&, bool, apply_stats*) {}
};
inline constexpr count_kept_t count_kept{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
