// A lane's cache in two parts: a window that every token enters, and pages for those that stay.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/check.hpp>

namespace KVPOLICY_NAMESPACE {

/// The free pages of a pool, a stack in the executor's memory: the next one to hand out is free[*count - 1].
struct page_free_list {
  int* free = nullptr;
  int* count = nullptr;
  int sentinel = -1;  ///< the page that unused entries of tables name; it is never handed out
};

/// Lanes in pages of their own, and what taking or giving back a page has to write.
struct paged_lanes {
  cache entries{};           ///< `where` is a block table over `table`
  by_lane<int> table{};      ///< the same table, to be written
  by_lane<int> num_pages{};  ///< pages that each row of the table holds
  page_free_list pages{};

  [[nodiscard]] KVPOLICY_HD constexpr int page() const { return entries.where.unit_tokens; }
};

/// The cache of a policy that admits: every token is written into its lane's window, a ring, and when it leaves the
/// window it goes on in pages of the lane, or is gone. Ordinals ascend in position in both.
///
/// All lanes of a sequence are in step in the window, so counts and positions of the window are shared by layers and
/// heads (stride 0), and `oldest` is one number a sequence: the ring's row of ordinal 0. The window's plane and the
/// pages' may lie in one pool, a lane's fixed local pages side by side.
struct dual_cache {
  cache window{};         ///< `where` is a ring over `oldest`; its rows: the policy's window, and drafts beyond it
  by_lane<int> oldest{};  ///< the same cursor, to be written
  paged_lanes global{};
};

namespace detail {

template <class T>
bool same_table(by_lane<T> const& written, by_lane<T const> const& read) {
  return written.data == read.data && written.sequence == read.sequence && written.layer == read.layer &&
         written.head == read.head;
}

inline void check_paged_lanes(char const* call, paged_lanes const& in) {
  check_cache(call, in.entries);
  locator const& where = in.entries.where;
  expects(where.kind == locating::block_table, call, "global.where", "no block table",
          "lanes that grow by pages are found through a table of pages");
  expects(same_table(in.table, where.table), call, "global.table", "another table",
          "it is the table that the locator reads, to be written");
  expects(in.num_pages.data != nullptr, call, "global.num_pages", "null", "every lane says how many pages it holds");
  expects(in.pages.free != nullptr && in.pages.count != nullptr, call, "global.pages", "null",
          "pages are taken from the pool's free ones");
  lanes const& batch = in.entries.lanes;
  auto const own = [&](char const* name, auto const& table) {
    bool const apart = (table.layer != 0 || batch.layers() == 1) && (table.head != 0 || batch.heads == 1) &&
                       (table.sequence != 0 || batch.sequences == 1);
    expects(apart, call, name, "shared by lanes", "every lane admits for itself");
  };
  own("global.table", in.table);
  own("global.num_pages", in.num_pages);
  own("global.lanes.count", batch.count);
  own("global.lanes.position", batch.position);
}

/// Everything about a dual cache that can be told without reading tables.
inline void check_dual(char const* call, dual_cache const& in) {
  locator const& ring = in.window.where;
  expects(ring.kind == locating::ring, call, "window.where", "no ring", "a window overwrites its oldest row");
  expects(in.global.page() < 1 || ring.unit_tokens % in.global.page() == 0, call, "window.rows", ring.unit_tokens,
          [&] { return "the ring is made of whole pages of " + std::to_string(in.global.page()) + " tokens"; });
  check_cache(call, in.window);
  check_paged_lanes(call, in.global);
  expects(same_table(in.oldest, ring.table), call, "oldest", "another cursor",
          "it is the cursor that the locator reads, to be written");
  lanes const& batch = in.window.lanes;
  bool const shared = batch.count.layer == 0 && batch.count.head == 0 && batch.position.layer == 0 &&
                      batch.position.head == 0 && in.oldest.layer == 0 && in.oldest.head == 0;
  expects(shared, call, "window.lanes", "a count for each lane", "all lanes of a sequence are in step in the window");
  bool const apart =
      batch.sequences == 1 || (batch.count.sequence != 0 && batch.position.sequence != 0 && in.oldest.sequence != 0);
  expects(apart, call, "window.lanes", "a count for all sequences", "sequences step by themselves");
  lanes const& pages = in.global.entries.lanes;
  bool const one_cache = batch.sequences == pages.sequences && in.window.shape == in.global.entries.shape &&
                         batch.layer_begin == pages.layer_begin && batch.layer_end == pages.layer_end;
  expects(one_cache, call, "window.shape", "another model's, batch's or layers'",
          "window and pages are parts of one cache");
  expects(pages.in_flight == nullptr, call, "global.lanes.in_flight", "not null", "drafts are in the window");
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
