// SPDX-License-Identifier: Apache-2.0
// Verbs: copy entries from one cache into the pages of another, and drop the oldest entries of a window.
#pragma once

#include <algorithm>
#include <array>
#include <kvpolicy/core/contract/check_lanes.hpp>
#include <kvpolicy/core/contract/check_pointers.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/dual_cache.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <limits>
#include <span>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// Entries that a keep set lists and that are copied into another cache.
struct promoted {
  keep_set const* keep = nullptr;  ///< one segment per lane
  cache const* from = nullptr;
  std::span<recorded_column const> columns{};  ///< the recorded columns of `from`
  int const* below = nullptr;  ///< one per sequence: only listed ordinals below it are copied; null: all
};

/// Counts of a promotion. They are in the memory in which the executor counts.
struct promotion_stats {
  std::int64_t promoted = 0;  ///< entries that were copied into pages, summed over lanes
  std::int64_t over_cap = 0;  ///< entries that were picked, but dropped because their lane was at its cap
  std::int64_t pages = 0;     ///< pages that were taken from the free list
  friend bool operator==(promotion_stats const&, promotion_stats const&) = default;
};

/// The epochs of both parts of a dual cache; null: they are not raised.
struct epochs_of_parts {
  by_lane<std::uint64_t> window{};
  by_lane<std::uint64_t> pages{};
};

/// How the oldest entries leave a window: the arguments of `drop_oldest`, but for their numbers.
struct oldest_entries {
  by_lane<int> oldest{};     ///< the row of each ring that holds the window's first entry
  int slid = -1;             ///< by how much recorded columns have slid; -1: they slide, and do not move
  epochs_of_parts epochs{};  ///< raised for the lanes that lose entries
};

/// A request to make a window ready for new entries.
struct ring_request {
  char const* call = "";        ///< the name of the public call, for its error messages
  int window = 0;               ///< entries that the window holds afterwards, at most; includes the new ones
  int const* tokens = nullptr;  ///< number of new entries per sequence, in the executor's memory
  /// The same numbers in host memory, of the lanes' sequences in their order; if not empty, they are used instead of
  /// `tokens`. They are copied by value, so a captured CUDA graph replays these numbers.
  std::span<int const> host_tokens{};
};

/// A decision about entries that leave a window, where each is decided about by itself. A backend may make it together
/// with the promotion: then its implementation of `append_rows` has `takes_exits` and `promote_exits`, which also drops
/// the entries.
template <class Function, class Rule>
struct exit_decision {
  ring_request asked{};
  int* exits = nullptr;  ///< out: one number per sequence, as of `count_exits`
  score_view scores{};   ///< of the entries that leave: their lanes' counts are `exits`
  Function score;        ///< the score of an entry, as for `map`
  Rule rule;             ///< which of them are kept, as for `select_if`
};

namespace detail {

/// Returns the column of the same kind, or null.
inline recorded_column const* same_column(std::span<recorded_column const> columns, column const& about) {
  auto const found =
      std::find_if(columns.begin(), columns.end(), [&](auto const& each) { return each.about == about; });
  return found != columns.end() ? &*found : nullptr;
}

/// Throws unless a row's bytes have the same scale in both caches: scales are the same memory, or move with the row.
inline void refuse_other_scales(char const* call, char const* name, element_scales const& of_source,
                                element_scales const& of_target, cache const& from, cache const& to) {
  bool moved = !scales_move(of_source, from.where) && !scales_move(of_target, to.where) && of_source == of_target;
  for (std::size_t i = 0; i < to.more.size() && !moved; ++i) {
    moved = of_source.data != nullptr && holds_scales(from.more[i], of_source) && holds_scales(to.more[i], of_target);
  }
  expects(moved, call, name, "other numbers than the other cache's",
          "rows are copied byte by byte: scales are the same memory, or a plane of `more` of both caches");
}

/// Throws unless rows of one cache can be copied to the other byte by byte.
inline void refuse_other_rows(char const* call, cache const& from, cache const& to) {
  auto const same = [](plane const& a, plane const& b) { return a.element == b.element && a.channels == b.channels; };
  expects(same(from.k, to.k) && same(value_plane(from), value_plane(to)), call, "rows", "of another type or size",
          "rows are copied byte by byte");
  expects(is_latent(from) == is_latent(to), call, "rows", "latent on one side only",
          "values are in the keys' rows of both caches, or of none");
  expects(from.more.size() == to.more.size(), call, "more", from.more.size(),
          [&] { return "the other cache has " + std::to_string(to.more.size()) + " further planes"; });
  refuse_other_scales(call, "k.scales", from.k.scales, to.k.scales, from, to);
  refuse_other_scales(call, "v.scales", from.v.scales, to.v.scales, from, to);
}

/// Throws if the new tokens are of a sequence that the batch does not have, or if their number is negative.
inline void refuse_unknown(char const* call, lanes const& window, append_request const& new_tokens) {
  check_sequence(call, window, new_tokens.sequence);
  expects(new_tokens.tokens >= 0, call, "tokens", new_tokens.tokens, "a count cannot be negative");
}

/// Throws if there are more new tokens than the window has rows.
inline void refuse_long(ring_request const& asked, int tokens) {
  expects(tokens >= 0 && tokens <= asked.window, asked.call, "tokens", tokens,
          [&] { return "the window has " + std::to_string(asked.window) + " rows: ingest takes longer chunks"; });
}

}  // namespace detail

namespace ops {

/// `append_rows(exec, sources, to, columns, cap, stats)`: appends the listed entries to their lanes, one source after
/// the other. It copies rows of K, V and the further planes, positions, and each recorded column that both caches have;
/// other columns of `to` start at zero. A lane takes a page from the free list when its last page is full; lanes take
/// pages in their order.
///
/// - in: `sources`, at most two. `cap`: a lane that has `cap` entries takes no more, and the rest of its list is
///   dropped; -1: there is no cap.
/// - out: `stats`, if not null, is overwritten.
/// - cost: reads and writes each promoted row once. No allocation.
/// - throws: `invalid_argument` if the free list has too few pages or hands out the sentinel, if a lane would exceed
///   its bound, or if positions do not ascend. Then nothing was changed.
struct append_rows_t : verb<append_rows_t> {
  static void check(std::span<promoted const> sources, paged_lanes const& to, std::span<recorded_column const>, int cap,
                    promotion_stats*) {
    expects(sources.size() <= 2, "append_rows", "sources", sources.size(), "a window, and what passes it by");
    expects(cap >= -1, "append_rows", "cap", cap, "-1 is no cap");
    for (promoted const& each : sources) {
      bool const kept = each.keep->lists == side::kept && each.keep->items == item::token;
      expects(kept && each.keep->decides == granularity::lane, "append_rows", "keep",
              kept ? "lanes together" : "dropped entries or pages", "every lane says what it takes up");
      expects(each.keep->lanes.size() == to.entries.lanes.size(), "append_rows", "keep.lanes", each.keep->lanes.size(),
              [&] { return "the pages are of " + std::to_string(to.entries.lanes.size()) + " lanes"; });
    }
  }
};
inline constexpr append_rows_t append_rows{};

/// `drop_oldest(exec, window, oldest, columns, entries, slid, epochs)`: removes the oldest `entries[s]` entries of each
/// sequence s from the window. Positions move to the front and the cursor `oldest` of the ring advances. Rows of K and
/// V stay where they are. The epochs of sequences that lose an entry are raised, in the window and in the pages, into
/// which it may have been promoted before.
///
/// - If `slid` >= 0, recorded columns of the entries that stay move back to the beginning of their memory, which is
///   `slid` entries before their current row. If `slid` < 0, they do not move, and the caller slides the state instead.
struct drop_oldest_t : verb<drop_oldest_t> {
  static constexpr void check(cache const&, by_lane<int> const&, std::span<recorded_column const>, int const*, int,
                              epochs_of_parts const& = {}) {}
};
inline constexpr drop_oldest_t drop_oldest{};

/// `enter_rows(exec, from, from_columns, window, columns, first)`: appends entries first[s] and later of each sequence
/// s of `from` to the window: rows, positions and recorded columns. The counts of the window grow.
///
/// - The window must have free rows: the caller dropped the oldest entries. The caller also calls the backend's
///   `refuse(exec, from, window)` before it drops them, which finds all errors.
/// - throws (from `refuse`): `invalid_argument` if rows have another type or size, or positions do not ascend. Then
///   nothing was changed.
struct enter_rows_t : verb<enter_rows_t> {
  static constexpr void check(cache const&, std::span<recorded_column const>, cache const&,
                              std::span<recorded_column const>, int const*) {}
};
inline constexpr enter_rows_t enter_rows{};

/// `release_pages(exec, lanes)`: returns the pages after each lane's last entry to the free list, the last page first.
struct release_pages_t : verb<release_pages_t> {
  static constexpr void check(paged_lanes const&) {}
};
inline constexpr release_pages_t release_pages{};

/// `count_exits(exec, window, asked, exits)`: counts how many entries of each sequence must leave the window so that
/// the new entries of `asked` fit.
///
/// - out: `exits`, one number per sequence.
/// - throws: `invalid_argument` if there are more new entries than the window has rows, or if a sequence has drafts
///   that are in the way.
struct count_exits_t : verb<count_exits_t> {
  static constexpr void check(lanes const&, ring_request const&, int*) {}
};
inline constexpr count_exits_t count_exits{};

/// `count_passing(exec, chunk, window, new_tokens, below)`: splits the tokens of each sequence of a chunk. The last
/// `window` tokens enter the window, and the tokens before them bypass it.
///
/// - out: per sequence, `new_tokens` is the number of tokens that enter, and `below` the number of those that bypass.
struct count_passing_t : verb<count_passing_t> {
  static constexpr void check(lanes const&, int, int*, int*) {}
};
inline constexpr count_passing_t count_passing{};

/// `refuse_new_tokens(exec, call, window, pages, new_tokens)`: checks new tokens, and writes nothing.
///
/// - throws: `invalid_argument`, in the name of `call`, if new tokens are of a sequence that the batch does not have,
///   if two requests are of one sequence, if there are more drafts than free rows in the ring, or if positions do not
///   ascend or do not fit into 32 bits.
struct refuse_new_tokens_t : verb<refuse_new_tokens_t> {
  static void check(char const* call, lanes const&, lanes const&, std::span<append_request const> new_tokens) {
    for (std::size_t i = 0; i < new_tokens.size(); ++i) {
      append_request const& one = new_tokens[i];
      expects(one.position >= 0, call, "position", one.position, "positions start at 0");
      expects(one.position <= std::numeric_limits<int>::max() - std::max(0, one.tokens), call, "position", one.position,
              "the last new position does not fit into 32 bits");
      bool const again = std::any_of(new_tokens.begin(), new_tokens.begin() + static_cast<std::ptrdiff_t>(i),
                                     [&](append_request const& other) { return other.sequence == one.sequence; });
      expects(!again, call, "sequence", one.sequence, "a step takes one run of new tokens of a sequence");
    }
  }
};
inline constexpr refuse_new_tokens_t refuse_new_tokens{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
