// Verbs: entries that go from one cache into another's pages, and a window that lets its oldest go.
#pragma once

#include <algorithm>
#include <array>
#include <kvpolicy/core/dual_cache.hpp>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <limits>
#include <span>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// Entries of a cache that a keep set lists, on their way into another cache.
struct promoted {
  keep_set const* keep = nullptr;  ///< a segment a lane
  cache const* from = nullptr;
  std::span<recorded_column const> columns{};  ///< what is recorded about `from`
  int const* below = nullptr;                  ///< a number a sequence: of the listed only ordinals below it; null: all
};

/// What became of entries on their way: counted where the executor counts.
struct promotion_stats {
  std::int64_t promoted = 0;  ///< entries of lanes that went into pages
  std::int64_t over_cap = 0;  ///< entries that were picked and dropped, because their lane was at its cap
  std::int64_t pages = 0;     ///< pages taken
  friend bool operator==(promotion_stats const&, promotion_stats const&) = default;
};

/// What a window is asked to take, and what it keeps.
struct ring_request {
  char const* call = "";        ///< who asks, for what it refuses
  int window = 0;               ///< entries that stay, the new ones among them
  int const* tokens = nullptr;  ///< new entries, a number a sequence, in the executor's memory; or
  std::span<int const>
      host_tokens{};  ///< in the host's, where it knows them. They are taken by value: a graph replays them
};

namespace detail {

/// The column of the same kind, or null.
inline recorded_column const* same_column(std::span<recorded_column const> among, column const& about) {
  auto const found = std::find_if(among.begin(), among.end(), [&](auto const& each) { return each.about == about; });
  return found != among.end() ? &*found : nullptr;
}

/// Two caches between which rows can be copied.
inline void refuse_other_rows(char const* call, cache const& from, cache const& to) {
  auto const same = [](plane const& a, plane const& b) { return a.element == b.element && a.dims == b.dims; };
  expects(same(from.k, to.k) && same(from.v, to.v), call, "rows", "of another type or size",
          "rows are copied byte by byte");
  expects(from.more.size() == to.more.size(), call, "more", from.more.size(),
          [&] { return "the other cache has " + std::to_string(to.more.size()) + " further planes"; });
}

/// New tokens that are no tokens of the batch.
inline void refuse_unknown(char const* call, lanes const& window, append_request const& new_tokens) {
  expects(new_tokens.sequence >= 0 && new_tokens.sequence < window.sequences, call, "sequence", new_tokens.sequence,
          [&] { return "the batch has " + std::to_string(window.sequences) + " sequences"; });
  expects(new_tokens.tokens >= 0, call, "tokens", new_tokens.tokens, "a count cannot be negative");
}

/// More new tokens than their window has rows.
inline void refuse_long(ring_request const& asked, int tokens) {
  expects(tokens >= 0 && tokens <= asked.window, asked.call, "tokens", tokens,
          [&] { return "the window has " + std::to_string(asked.window) + " rows: take_in takes longer chunks"; });
}

}  // namespace detail

namespace ops {

/// `append_rows(exec, sources, to, columns, cap, stats)`: the listed entries go behind the last entry of their lane,
/// one source after the other: rows of K, V and what moves with them, positions, and each recorded column that both
/// sides keep (others start at zero). A lane takes a page when its last is full, lane by lane from the supply.
///
/// - in: `sources`, two at most. `cap`: a lane that holds so many entries takes no more, the rest of its list is
///   dropped; -1: no cap.
/// - cost: reads and writes each promoted row once. No allocation.
/// - throws: `invalid_argument` if the supply has too few pages or hands out the sentinel, a lane is at its bound, or
///   positions do not ascend. Then nothing was changed.
struct append_rows_t : verb<append_rows_t> {
  static void check(std::span<promoted const> sources, paged_lanes const& to, std::span<recorded_column const>, int cap,
                    promotion_stats*) {
    expects(sources.size() <= 2, "append_rows", "sources", sources.size(), "a window, and what passes it by");
    expects(cap >= -1, "append_rows", "cap", cap, "-1 is no cap");
    for (promoted const& each : sources) {
      bool const kept = each.keep->lists == side::kept && each.keep->of == unit::token;
      expects(kept && each.keep->decides == granularity::lane, "append_rows", "keep",
              kept ? "lanes together" : "dropped entries or pages", "every lane says what it takes up");
      expects(each.keep->lanes.size() == to.entries.lanes.size(), "append_rows", "keep.lanes", each.keep->lanes.size(),
              [&] { return "the pages are of " + std::to_string(to.entries.lanes.size()) + " lanes"; });
    }
  }
};
inline constexpr append_rows_t append_rows{};

/// `drop_oldest(exec, window, oldest, columns, entries, slid)`: the oldest `entries[s]` of each sequence s leave the
/// window: positions move up, the ring's cursor moves on. What is recorded moves to the beginning of its rows, from
/// behind `slid` entries and those that leave; `slid` < 0: it stays, and slides. Rows of K and V stay where they are.
struct drop_oldest_t : verb<drop_oldest_t> {
  static constexpr void check(cache const&, by_lane<int> const&, std::span<recorded_column const>, int const*, int) {}
};
inline constexpr drop_oldest_t drop_oldest{};

/// `enter_rows(exec, from, from_columns, window, columns, first)`: entries first[s] and on of each sequence s of `from`
/// go behind the last entry of the window: rows, positions, recorded columns; counts grow.
/// - the window has room: the oldest have left it. A backend's `refuse(exec, from, window)` finds the rest before they
///   do.
/// - throws: `invalid_argument` if rows are of another type, or positions do not ascend. Then nothing was changed.
struct enter_rows_t : verb<enter_rows_t> {
  static constexpr void check(cache const&, std::span<recorded_column const>, cache const&,
                              std::span<recorded_column const>, int const*) {}
};
inline constexpr enter_rows_t enter_rows{};

/// `release_pages(exec, lanes)`: pages behind each lane's last entry go back to the supply, the last first.
struct release_pages_t : verb<release_pages_t> {
  static constexpr void check(paged_lanes const&) {}
};
inline constexpr release_pages_t release_pages{};

/// `count_exits(exec, window, asked, exits)`: how many entries of each sequence leave the window so that the new ones
/// of `asked` can enter.
/// - throws: `invalid_argument` if more are to enter than the window has rows, or drafts stand in the way.
struct count_exits_t : verb<count_exits_t> {
  static constexpr void check(lanes const&, ring_request const&, int*) {}
};
inline constexpr count_exits_t count_exits{};

/// `count_passing(exec, new_tokens, window, entering, below)`: of each sequence of a chunk the last `window` tokens are
/// `entering`, and `below` pass the window by.
struct count_passing_t : verb<count_passing_t> {
  static constexpr void check(lanes const&, int, int*, int*) {}
};
inline constexpr count_passing_t count_passing{};

/// `refuse_new_tokens(exec, call, window, pages, new_tokens)`: new tokens that their sequence cannot take are refused:
/// another batch's, two runs of one sequence, drafts beyond the ring's rows, positions that do not ascend.
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
