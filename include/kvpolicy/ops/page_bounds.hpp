// Verbs: bounds of the keys of every page, kept up to date.
#pragma once

#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Bounds of pages: a page is `page` consecutive ordinals of a lane, the last one perhaps fewer. A lane's row holds 2 D
/// elements for every page: the highest value of each channel over the page's keys, then the lowest.
template <class Byte, class Count>
struct page_bound_table {
  by_lane<Byte> rows{};
  by_lane<Count> known{};  ///< one number a lane: entries that the bounds speak of, from the first on
  codec element = codec::f32;
  int dims = 0;  ///< D
  int page = 16;

  [[nodiscard]] KVPOLICY_HD constexpr std::int64_t row_bytes() const {
    return std::int64_t{2} * dims * bytes_of(element);
  }
  [[nodiscard]] KVPOLICY_HD constexpr Byte* row(lane this_lane, int which) const {
    return rows.row(this_lane) + which * row_bytes();
  }
};

/// Bounds to be read.
using page_bound_view = page_bound_table<std::byte const, int const>;
/// Bounds to be written.
using page_bound_memory = page_bound_table<std::byte, int>;

namespace detail {

/// Pages of `page` entries that hold so many.
[[nodiscard]] KVPOLICY_HD constexpr int pages_for(int entries, int page) {
  return static_cast<int>((std::int64_t{entries} + page - 1) / page);
}

template <class Byte, class Count>
void check_page_bounds(char const* call, page_bound_table<Byte, Count> const& of) {
  expects(of.rows.data != nullptr && of.known.data != nullptr, call, "page_bounds", "null",
          "a lane has bounds, and a number that says how far they go");
  expects(of.page >= 1, call, "page_bounds.page", of.page, "a page holds at least one entry");
  expects(of.dims >= 1, call, "page_bounds.dims", of.dims, "a head has at least one channel");
  expects(of.element != codec::opaque, call, "page_bounds.element", "opaque", "bounds are numbers");
}

}  // namespace detail

namespace ops {

/// `extend_bounds(exec, lanes, keys, bounds)`: the bounds of every committed entry that they do not speak of yet.
///
/// - in: post-RoPE `keys` of `lanes`. Drafts are not among the entries that count.
/// - in, out: `bounds`. What is known is rounded down to whole pages, and each page from there on is made anew from its
///   own first row, so a bound is a value of a key and none is looser than its page.
/// - a NaN in a channel is that channel's highest or lowest value, and so not lost.
/// - cost: reads each key of the pages that it makes once; of an unfinished page again at the next call. Scratch of a
///   worker: 18 D floats.
/// - throws: `invalid_argument` if head sizes differ, or the bounds' element type is neither the keys' nor f32.
struct extend_bounds_t : verb<extend_bounds_t> {
  static constexpr auto name = "extend_bounds";
  static void check(lanes const&, keys const& from, page_bound_memory const& to) {
    detail::check_page_bounds("extend_bounds", to);
    detail::check_readable("extend_bounds", "keys", from.rows.element);
    expects(from.rows.dims == to.dims, "extend_bounds", "keys.dims", from.rows.dims,
            [&] { return "the bounds have " + std::to_string(to.dims) + " channels"; });
    expects(to.element == from.rows.element || to.element == codec::f32, "extend_bounds", "page_bounds.element",
            name_of(to.element), [&] {
              return std::string("bounds are values of the keys, held as those are (") + name_of(from.rows.element) +
                     ") or in f32";
            });
  }
};
inline constexpr extend_bounds_t extend_bounds{};

/// `forget_bounds(exec, lanes, known, sequence, position)`: of one sequence, bounds speak of entries before `position`
/// at most.
struct forget_bounds_t : verb<forget_bounds_t> {
  static constexpr void check(lanes const&, by_lane<int> const&, int, int) {}
};
inline constexpr forget_bounds_t forget_bounds{};

/// `count_pages(exec, lanes, page, pages)`: lanes of pages become what their entries fill. Each lane's count is its
/// number of pages that hold committed entries, and the position of a page is its number.
/// - out: `pages.count` and `pages.position`, one row of positions for all lanes.
struct count_pages_t : verb<count_pages_t> {
  static void check(lanes const& batch, int page, lanes const& pages) {
    expects(page >= 1, "count_pages", "page", page, "a page holds at least one entry");
    expects(pages.bound >= detail::pages_for(batch.bound, page), "count_pages", "pages.bound", pages.bound,
            "every page of a full lane is counted");
  }
};
inline constexpr count_pages_t count_pages{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
