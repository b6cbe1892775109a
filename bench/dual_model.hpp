// SPDX-License-Identifier: Apache-2.0
// A dual cache of a whole model: a ring of 256 rows for each lane, and pages of 16 behind it.
#pragma once

#include <numeric>

#include "model.hpp"

namespace bench {

inline constexpr int window = 256, page = 16, lane_pages = 32, dual_lanes = 36 * 8;
inline constexpr std::size_t dual_row = 256;  // of 128 numbers in bf16

/// Rings in local pages of a pool, and 32 pages for every lane beside them.
struct dual_model {
  bench::memory k, v;
  std::vector<int> free, table, held, count, position, window_position;
  int free_count = 0, oldest = 0, window_count = 0;
  kv::dual_cache both;

  dual_model() : k(pool_bytes()), v(pool_bytes()) {
    bench::fill_elements(k, kv::codec::bf16, 1, 1);
    bench::fill_elements(v, kv::codec::bf16, 1, 2);
    free.resize(dual_lanes * lane_pages);
    table.resize(dual_lanes * lane_pages);
    held.resize(dual_lanes);
    count.resize(dual_lanes);
    position.resize(dual_lanes * lane_pages * page);
    window_position.resize(window);
    std::iota(free.rbegin(), free.rend(), dual_lanes * window / page);
    free_count = dual_lanes * lane_pages;
    view();
  }
  static std::size_t pool_bytes() { return dual_row * dual_lanes * (window + lane_pages * page); }

  kv::plane plane(bench::memory const& of, bool ring) const {
    auto const bytes = static_cast<std::int64_t>(dual_row);
    kv::plane made{.base = of.data(),
                   .element = kv::codec::bf16,
                   .channels = 128,
                   .unit_stride = page * bytes,
                   .token_stride = bytes,
                   .channel_stride = 2};
    if (!ring) return made;
    made.head_stride = window * bytes;
    made.layer_stride = made.head_stride * 8;
    made.unit_stride = made.layer_stride * 36;
    return made;
  }
  void view() {
    auto const who = [](kv::by_lane<int> counts, kv::by_lane<int> positions, int bound) {
      return kv::lanes{.layer_end = 36, .heads = 8, .capacity = bound, .count = counts, .position = positions};
    };
    both.window = {.shape = bench::whole_model,
                   .lanes = who({&window_count, 1, 0, 0}, {window_position.data(), window, 0, 0}, window),
                   .k = plane(k, true),
                   .v = plane(v, true),
                   .where = {kv::locating::ring, {&oldest, 1, 0, 0}, window, 1}};
    both.oldest = {&oldest, 1, 0, 0};
    constexpr std::int64_t capacity = lane_pages * page;
    both.pages.table = {table.data(), 0, 8 * lane_pages, lane_pages};
    both.pages.entries = {.shape = bench::whole_model,
                          .lanes = who({count.data(), 0, 8, 1}, {position.data(), 0, 8 * capacity, capacity}, capacity),
                          .k = plane(k, false),
                          .v = plane(v, false),
                          .where = kv::block_table({table.data(), 0, 8 * lane_pages, lane_pages}, page,
                                                   dual_lanes * (window / page + lane_pages))};
    both.pages.num_pages = {held.data(), 0, 8, 1};
    both.pages.free_pages = {free.data(), &free_count, -1};
  }
  /// Pages are empty again; the window stays as it is.
  void empty() {
    std::fill(count.begin(), count.end(), 0);
    kv::host_executor one;
    kv::ops::release_pages(one, both.pages);
  }
};

}  // namespace bench
