// Verbs: entries that go from one cache into another's pages, and a window that lets its oldest go.
#pragma once

#include <array>
#include <kvpolicy/core/dual_cache.hpp>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <span>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// Entries of a cache that a keep set lists, on their way into another cache.
struct promoted {
  keep_set const* keep = nullptr;  ///< a segment a lane
  cache const* from = nullptr;
  std::span<held_column const> columns{};  ///< what is recorded about `from`
  int const* below = nullptr;              ///< a number a sequence: of the listed only ordinals below it; null: all
};

/// What became of entries on their way: counted where the executor counts.
struct promotion_tally {
  std::int64_t promoted = 0;  ///< entries of lanes that went into pages
  std::int64_t over_cap = 0;  ///< entries that were picked and dropped, because their lane was at its cap
  std::int64_t pages = 0;     ///< pages taken
  friend bool operator==(promotion_tally const&, promotion_tally const&) = default;
};

namespace ops {

/// `append_rows(exec, sources, to, columns, cap, told)`: the listed entries go behind the last entry of their lane, one
/// source after the other: rows of K, V and what moves with them, positions, and each recorded column that both sides
/// keep (others start at zero). A lane takes a page when its last is full, lane by lane from the supply.
///
/// - in: `sources`, two at most. `cap`: a lane that holds so many entries takes no more, the rest of its list is
///   dropped; -1: no cap.
/// - cost: reads and writes each promoted row once. No allocation.
/// - throws: `invalid_argument` if the supply has too few pages or hands out the sentinel, a lane is at its bound, or
///   positions do not ascend. Then nothing was changed.
struct append_rows_t : verb<append_rows_t> {
  static void check(std::span<promoted const> sources, paged_lanes const& to, std::span<held_column const>, int cap,
                    promotion_tally*) {
    expects(sources.size() <= 2, "append_rows", "sources", sources.size(), "a window, and what passes it by");
    expects(cap >= -1, "append_rows", "cap", cap, "-1 is no cap");
    for (promoted const& each : sources) {
      bool const kept = each.keep->lists == side::kept && each.keep->of == unit::token;
      expects(kept && each.keep->decides == granularity::lane, "append_rows", "keep",
              kept ? "lanes together" : "dropped entries or pages", "every lane says what it takes up");
      expects(each.keep->who.size() == to.entries.who.size(), "append_rows", "keep.lanes", each.keep->who.size(),
              [&] { return "the pages are of " + std::to_string(to.entries.who.size()) + " lanes"; });
    }
  }
};
inline constexpr append_rows_t append_rows{};

/// `drop_oldest(exec, window, oldest, columns, entries, slid)`: the oldest `entries[s]` of each sequence s leave the
/// window: positions move up, the ring's cursor moves on. What is recorded moves to the beginning of its rows, from
/// behind `slid` entries and those that leave; `slid` < 0: it stays, and slides. Rows of K and V stay where they are.
struct drop_oldest_t : verb<drop_oldest_t> {
  static constexpr void check(cache const&, by_lane<int> const&, std::span<held_column const>, int const*, int) {}
};
inline constexpr drop_oldest_t drop_oldest{};

/// `enter_rows(exec, from, from_columns, window, columns, first)`: entries first[s] and on of each sequence s of `from`
/// go behind the last entry of the window: rows, positions, recorded columns; counts grow.
/// - the window has room: the oldest have left it. A backend's `refuse(from, window)` finds the rest before they do.
/// - throws: `invalid_argument` if rows are of another type, or positions do not ascend. Then nothing was changed.
struct enter_rows_t : verb<enter_rows_t> {
  static constexpr void check(cache const&, std::span<held_column const>, cache const&, std::span<held_column const>,
                              int const*) {}
};
inline constexpr enter_rows_t enter_rows{};

/// `release_pages(exec, lanes)`: pages behind each lane's last entry go back to the supply, the last first.
struct release_pages_t : verb<release_pages_t> {
  static constexpr void check(paged_lanes const&) {}
};
inline constexpr release_pages_t release_pages{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
