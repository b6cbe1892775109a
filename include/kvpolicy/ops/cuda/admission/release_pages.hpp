// SPDX-License-Identifier: Apache-2.0
// Device implementation of release_pages. One launch counts the pages that each lane releases, and its last block adds
// them up; the other appends them to the list of free pages, in the order of lanes.
#pragma once

#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/cuda/admission/promotion_counts.hpp>
#include <kvpolicy/ops/scratch.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Counts the pages that each lane releases, which are the last of its pages, one thread for each lane. The last block
/// adds up the lanes in order.
struct count_released_kernel {
  pages_of_lanes from;
  lane_promotion* released;  ///< the members `pages` and `pages_before`
  promotion_totals* all;     ///< the pages that all release, and those that were free before
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    counting_storage const shared(block);
    int const step = block.blocks() * block.threads();
    for (int i = block.index() * block.threads() + block.thread(); i < from.lanes.size(); i += step) {
      lane const one = from.lanes.at(i);
      int const over = *from.num_pages.row(one) - from.pages_for(*from.lanes.count.row(one));
      released[i].pages = over > 0 ? over : 0;
    }
    if (!last_block(block, ticket, shared.last)) return;
    std::int64_t const pages = add_up_pages(block, from.lanes.size(), shared.collective, released);
    if (block.thread() == 0) *all = {{0, 0, pages}, *from.free_list.count};
  }
};

/// Appends a lane's pages to the list of free pages, the last one first; one block for each lane.
struct write_released_kernel {
  pages_of_lanes from;
  lane_promotion const* released;
  promotion_totals const* all;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    page_free_list const& pages = from.free_list;
    if (block.index() == 0 && block.thread() == 0) *pages.count = all->free_pages + static_cast<int>(all->sum.pages);
    lane_promotion const& mine = released[block.index()];
    if (mine.pages == 0) return;
    lane const one = from.lanes.at(block.index());
    int const last = *from.num_pages.row(one) - 1;
    for (int p = block.thread(); p < mine.pages; p += block.threads()) {
      int* const named = from.table.row(one) + last - p;
      pages.free[all->free_pages + mine.pages_before + p] = *named;
      if (pages.sentinel >= 0) *named = pages.sentinel;
    }
    block.sync();
    if (block.thread() == 0) *from.num_pages.row(one) = last + 1 - mine.pages;
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::release_pages_t, Backend> {
  static std::size_t scratch(shape const&, lanes const& batch) {
    return detail::promotion_scratch::bytes(batch.size());
  }

  template <class Executor>
  static void run(Executor& exec, paged_lanes const& in) {
    lanes const& batch = in.entries.lanes;
    detail::check_reserved("release_pages", exec, scratch(in.entries.shape, batch));
    detail::pages_of_lanes const from = detail::pages_of(in);
    detail::promotion_scratch const parts(exec.scratch(), batch.size());
    auto const threads = exec.threads().lane;
    exec.launch(launch_shape{(batch.size() + threads - 1) / threads, threads, detail::counting_storage::bytes()},
                detail::count_released_kernel{from, parts.promotions, parts.all, exec.tickets()});
    detail::launch_unless_fault(exec, launch_shape{batch.size(), threads, 0},
                                detail::write_released_kernel{from, parts.promotions, parts.all});
  }
};

}  // namespace KVPOLICY_NAMESPACE
