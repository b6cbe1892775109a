// SPDX-License-Identifier: Apache-2.0
// Device implementation of release_pages. One launch counts the pages that each lane releases, and its last block adds
// them up; the other appends them to the list of free pages, in the order of lanes.
#pragma once

#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/cuda/admission/promotion_counts.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// How many pages one lane releases, which are the last of its pages, and how many the lower lanes release.
struct lane_release {
  int pages = 0;
  int pages_before = 0;
};

/// How many pages all lanes release, and how many pages were free before.
struct all_released {
  int pages = 0;
  int free_pages = 0;
};

/// Counts the pages that each lane releases, one thread for each lane. The last block adds up the lanes in order.
struct count_released_kernel {
  kvpolicy::lanes lanes;
  by_lane<int> num_pages;
  int page;
  int const* free_pages;
  lane_release* released;
  all_released* all;
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    counting_storage const shared(block);
    int const step = block.blocks() * block.threads();
    for (int i = block.index() * block.threads() + block.thread(); i < lanes.size(); i += step) {
      lane const one = lanes.at(i);
      int const over = *num_pages.row(one) - (*lanes.count.row(one) + page - 1) / page;
      released[i].pages = over > 0 ? over : 0;
    }
    if (!last_block(block, ticket, shared.last)) return;
    std::int64_t const pages = add_up_pages(block, lanes.size(), shared.collective, released);
    if (block.thread() == 0) *all = {static_cast<int>(pages), *free_pages};
  }
};

/// Appends a lane's pages to the list of free pages, the last one first; one block for each lane.
struct write_released_kernel {
  kvpolicy::lanes lanes;
  by_lane<int> table;
  by_lane<int> num_pages;
  page_free_list pages;
  lane_release const* released;
  all_released const* all;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    if (block.index() == 0 && block.thread() == 0) *pages.count = all->free_pages + all->pages;
    lane_release const mine = released[block.index()];
    if (mine.pages == 0) return;
    lane const one = lanes.at(block.index());
    int const last = *num_pages.row(one) - 1;
    for (int p = block.thread(); p < mine.pages; p += block.threads()) {
      int* const named = table.row(one) + last - p;
      pages.free[all->free_pages + mine.pages_before + p] = *named;
      if (pages.sentinel >= 0) *named = pages.sentinel;
    }
    block.sync();
    if (block.thread() == 0) *num_pages.row(one) = last + 1 - mine.pages;
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::release_pages_t, Backend> {
  static std::size_t scratch(shape const&, lanes const& batch) {
    return releases_offset + static_cast<std::size_t>(batch.size()) * sizeof(detail::lane_release);
  }

  template <class Executor>
  static void run(Executor& exec, paged_lanes const& in) {
    lanes const& batch = in.entries.lanes;
    expects(exec.reserved() >= scratch(in.entries.shape, batch), "release_pages", "exec",
            "an executor without scratch for this batch", "plan and state are made on the executor that runs them");
    auto* const all = reinterpret_cast<detail::all_released*>(exec.scratch());
    auto* const released = reinterpret_cast<detail::lane_release*>(exec.scratch() + releases_offset);
    auto const threads = exec.threads().lane;
    using counting = detail::count_released_kernel;
    exec.launch(launch_shape{(batch.size() + threads - 1) / threads, threads, detail::counting_storage::bytes()},
                counting{batch, in.num_pages, in.page(), in.free_pages.count, released, all, exec.tickets()});
    detail::launch_unless_fault(
        exec, launch_shape{batch.size(), threads, 0},
        detail::write_released_kernel{batch, in.table, in.num_pages, in.free_pages, released, all});
  }

 private:
  static constexpr std::size_t releases_offset = 16;
};

}  // namespace KVPOLICY_NAMESPACE
