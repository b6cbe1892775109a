// SPDX-License-Identifier: Apache-2.0
// Verbs: keep per-page bounds of the keys up to date.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/layer_runs.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Channel-wise bounds of the keys of each page. A page is `page` consecutive ordinals of a lane; the last page may
/// have fewer. The row of a lane holds 2 D elements per page: the maximum of each channel over the page's keys, then
/// the minimum.
template <class Byte, class Count>
struct page_bound_table {
  by_lane<Byte> rows{};
  by_lane<Count> known{};  ///< per lane: how many entries, from the first on, the bounds cover
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

/// Bounds that are only read.
using page_bound_view = page_bound_table<std::byte const, int const>;
/// Bounds that are written.
using page_bound_memory = page_bound_table<std::byte, int>;

namespace detail {

/// Returns the number of pages of `page` entries that hold `entries` entries.
[[nodiscard]] KVPOLICY_HD constexpr int pages_for(int entries, int page) {
  return static_cast<int>((std::int64_t{entries} + page - 1) / page);
}

template <class Byte, class Count>
void check_page_bounds(char const* call, page_bound_table<Byte, Count> const& bounds) {
  expects(bounds.rows.data != nullptr && bounds.known.data != nullptr, call, "page_bounds", "null",
          "a lane has bounds, and a number that says how far they go");
  expects(bounds.page >= 1, call, "page_bounds.page", bounds.page, "a page holds at least one entry");
  expects(bounds.dims >= 1, call, "page_bounds.dims", bounds.dims, "a head has at least one channel");
  expects(bounds.element != codec::opaque, call, "page_bounds.element", "opaque", "bounds are numbers");
  check_not_fp8(call, "page_bounds.element", bounds.element);
}

}  // namespace detail

namespace ops {

/// `extend_bounds(exec, lanes, keys, bounds)`: extends the bounds to all committed entries.
///
/// - in: post-RoPE `keys` of `lanes`. Drafts are not covered.
/// - in, out: `bounds`. The covered count is rounded down to whole pages, and each page from there on is computed from
///   all of its keys. So a bound is a value of some key, and no bound is looser than its page requires.
/// - NaN: a NaN in a channel is stored as the maximum or the minimum of the channel, by its sign, so it is not lost.
/// - cost: reads each key of the computed pages once; the keys of an unfinished page are read again by the next call.
///   Scratch per worker: 18 D floats.
/// - throws: `invalid_argument` if head sizes differ, or the element type of the bounds is neither that of the keys nor
///   f32. Keys of fp8 have bounds of f32, of element x scale.
struct extend_bounds_t : verb<extend_bounds_t> {
  static constexpr auto name = "extend_bounds";
  static void check(lanes const&, keys const& from, page_bound_memory const& to) {
    detail::check_page_bounds("extend_bounds", to);
    detail::check_readable("extend_bounds", "keys", from.rows.element);
    detail::check_scales("extend_bounds", "keys", from.rows);
    expects(from.rows.channels == to.dims, "extend_bounds", "keys.channels", from.rows.channels,
            [&] { return "the bounds have " + std::to_string(to.dims) + " channels"; });
    expects(to.element == from.rows.element || to.element == codec::f32, "extend_bounds", "page_bounds.element",
            name_of(to.element), [&] {
              return std::string("bounds are values of the keys, held as those are (") + name_of(from.rows.element) +
                     ") or in f32";
            });
  }
};
inline constexpr extend_bounds_t extend_bounds{};

/// `forget_bounds(exec, lanes, known, sequence, position)`: lowers the covered counts of one sequence, so that its
/// bounds cover only entries before `position`.
struct forget_bounds_t : verb<forget_bounds_t> {
  static constexpr void check(lanes const&, by_lane<int> const&, int, int) {}
};
inline constexpr forget_bounds_t forget_bounds{};

/// `count_pages(exec, lanes, page, pages, runs = {})`: sets the counts of lanes whose entries are pages. The count of
/// each lane becomes the number of pages that hold committed entries, and the position of a page is its index.
///
/// - in: `runs` of more than one layer: a lane holds the same entries as that of its head in the first layer of its
///   run, which may be outside of `lanes`.
/// - out: `pages.count`, and `pages.position`, which is one row of positions for all lanes.
/// - cost: reads each count once, and with runs each position of the lanes that are not in the first layer of a run.
/// - throws: `invalid_argument` if a lane of a run holds other entries than that of the first layer; a device records a
///   fault. Then nothing was changed on the host.
struct count_pages_t : verb<count_pages_t> {
  static void check(lanes const& batch, int page, lanes const& pages, layer_runs const& = layer_runs()) {
    expects(page >= 1, "count_pages", "page", page, "a page holds at least one entry");
    expects(pages.capacity >= detail::pages_for(batch.capacity, page), "count_pages", "pages.capacity", pages.capacity,
            "every page of a full lane is counted");
  }
};
inline constexpr count_pages_t count_pages{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
