// SPDX-License-Identifier: Apache-2.0
// A cache in two parts for policies with an admission: a window that every token enters, and pages for those that the
// policy admits.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/check.hpp>
#include <kvpolicy/core/slots.hpp>

namespace KVPOLICY_NAMESPACE {

/// The free pages of a pool: a stack in the executor's memory. The next page to allocate is free[*count - 1].
struct page_free_list {
  int* free = nullptr;
  int* count = nullptr;
  int sentinel = -1;  ///< the page that unused entries of block tables name; it is never allocated
};

/// Lanes that each have pages of their own, with the memory that is written when a page is allocated or freed.
struct paged_lanes {
  cache entries{};           ///< `where` is a block table that reads `table`
  by_lane<int> table{};      ///< the block table, as writable memory
  by_lane<int> num_pages{};  ///< the number of pages in each row of the table
  page_free_list free_pages{};

  [[nodiscard]] KVPOLICY_HD constexpr int page() const { return entries.where.unit_tokens; }
};

/// The cache of a policy with an admission. Every token is written into its lane's window, which is a ring. When it
/// leaves the window, it is copied into pages of the lane if it is admitted, and dropped otherwise. Positions ascend
/// with ordinals in both parts.
///
/// All lanes of a sequence have the same tokens in the window. Therefore layers and heads share the window's counts and
/// positions (stride 0), and `oldest` is one number for each sequence: the row of the ring that holds ordinal 0. The
/// planes of window and pages may lie in one pool, where a lane's local pages are fixed and contiguous.
struct dual_cache {
  cache window{};         ///< `where` is a ring that reads `oldest`; its rows hold the policy's window and drafts
  by_lane<int> oldest{};  ///< the ring's cursor, as writable memory
  paged_lanes pages{};
};

namespace detail {

/// Lanes of pages, told which window is before them.
[[nodiscard]] inline lanes behind(lanes const& window, lanes pages) {
  pages.newer = {window.count.data,     window.position.data,     window.in_flight,
                 window.count.sequence, window.position.sequence, window.capacity};
  return pages;
}

}  // namespace detail

/// The lanes of the pages of a dual cache, told which window is before them. A query row then counts up to the newest
/// token of the window; without that, rows after the newest entry of the pages count as those of drafts. Give them as
/// `signals::lanes` to calls about the pages alone whose signals are query rows or attention probabilities.
[[nodiscard]] inline lanes lanes_of_pages(dual_cache const& in) {
  return detail::behind(in.window.lanes, in.pages.entries.lanes);
}

/// The dual cache of the listed slots: see `only` of a cache.
[[nodiscard]] inline dual_cache only(dual_cache const& all, slot_list const& batch) {
  dual_cache some = all;
  some.window = only(all.window, batch);
  some.oldest = only(all.oldest, batch);
  some.pages.entries = only(all.pages.entries, batch);
  some.pages.table = only(all.pages.table, batch);
  some.pages.num_pages = only(all.pages.num_pages, batch);
  return some;
}

namespace detail {

inline void check_paged_lanes(char const* call, paged_lanes const& in) {
  check_cache(call, in.entries);
  locator const& where = in.entries.where;
  expects(where.kind == locating::block_table, call, "pages.where", "no block table",
          "lanes that grow by pages are found through a table of pages");
  check_same_table(call, "pages.table", in.table, where.table);
  expects(in.num_pages.data != nullptr, call, "pages.num_pages", "null", "every lane says how many pages it holds");
  expects(in.free_pages.free != nullptr && in.free_pages.count != nullptr, call, "pages.free_pages", "null",
          "pages are taken from the pool's free ones");
  lanes const& batch = in.entries.lanes;
  auto const own = [&](char const* name, auto const& table) {
    bool const apart = (table.layer != 0 || batch.layers() == 1) && (table.head != 0 || batch.heads == 1) &&
                       (table.sequence != 0 || batch.sequences == 1);
    expects(apart, call, name, "shared by lanes", "every lane admits for itself");
  };
  own("pages.table", in.table);
  own("pages.num_pages", in.num_pages);
  own("pages.lanes.count", batch.count);
  own("pages.lanes.position", batch.position);
}

/// Checks everything about a dual cache that can be checked without reading tables.
inline void check_dual(char const* call, dual_cache const& in) {
  locator const& ring = in.window.where;
  expects(ring.kind == locating::ring, call, "window.where", "no ring", "a window overwrites its oldest row");
  expects(in.pages.page() < 1 || ring.unit_tokens % in.pages.page() == 0, call, "window.rows", ring.unit_tokens,
          [&] { return "the ring is made of whole pages of " + std::to_string(in.pages.page()) + " tokens"; });
  check_cache(call, in.window);
  check_paged_lanes(call, in.pages);
  check_same_table(call, "oldest", in.oldest, ring.table);
  lanes const& batch = in.window.lanes;
  bool const shared = batch.count.layer == 0 && batch.count.head == 0 && batch.position.layer == 0 &&
                      batch.position.head == 0 && in.oldest.layer == 0 && in.oldest.head == 0;
  expects(shared, call, "window.lanes", "a count for each lane", "all lanes of a sequence are in step in the window");
  bool const apart =
      batch.sequences == 1 || (batch.count.sequence != 0 && batch.position.sequence != 0 && in.oldest.sequence != 0);
  expects(apart, call, "window.lanes", "a count for all sequences", "sequences step by themselves");
  lanes const& pages = in.pages.entries.lanes;
  bool const one_cache = batch.sequences == pages.sequences && in.window.shape == in.pages.entries.shape &&
                         batch.layer_begin == pages.layer_begin && batch.layer_end == pages.layer_end;
  expects(one_cache, call, "window.shape", "another model's, batch's or layers'",
          "window and pages are parts of one cache");
  expects(batch.order.data == nullptr && pages.order.data == nullptr, call, "lanes.order", "given",
          "positions ascend in a window and in its pages: leave it null");
  expects(pages.in_flight == nullptr, call, "pages.lanes.in_flight", "not null", "drafts are in the window");
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
