// SPDX-License-Identifier: Apache-2.0
// The small engine with the cache that an admission needs: each lane has a window, which is a ring that every token
// enters, and pages for the tokens that it admits. One pool of pages serves all lanes.
#pragma once

#include <kvpolicy/core/dual_cache.hpp>

#include "engine.hpp"

namespace kv = kvpolicy;

/// One sequence. Its pages are stored in the tensors `k` and `v`, one after the other, each of the rows of one lane:
/// the first ones are the windows of the lanes, and the last one is the sentinel that unused entries of `table` name.
class gated_engine : public engine {
 public:
  static constexpr int page = 16;

  /// `window` is a multiple of the page.
  gated_engine(int rows_each, int window) : engine(1, rows_each), window_(window) {
    int const first = lanes * window / page;
    for (int p = sentinel - 1; p >= first; --p) free[free_count[0]++] = p;
    for (int i = 0; i < lanes * pages_of_lane; ++i) table[i] = sentinel;
  }

  /// Describes the memory to kvpolicy.
  [[nodiscard]] kv::dual_cache view() {
    kv::shape const shape{layers, query_heads, kv_heads, head_dim};
    std::int64_t const row = 4LL * head_dim;  // strides are in bytes
    kv::plane pages{.base = reinterpret_cast<std::byte*>(k.data()),
                    .channels = head_dim,
                    .unit_stride = page * row,
                    .token_stride = row,
                    .channel_stride = 4};
    kv::plane ring{.base = pages.base,
                   .channels = head_dim,
                   .layer_stride = kv_heads * window_ * row,
                   .token_stride = row,
                   .head_stride = window_ * row,
                   .channel_stride = 4};
    kv::dual_cache both;
    both.window = {.shape = shape,
                   .lanes = {.layer_end = layers,
                             .heads = kv_heads,
                             .capacity = window_,
                             .count = {window_count.data(), 1},
                             .position = {window_positions.data(), window_}},
                   .k = ring,
                   .v = ring,
                   .where = {kv::locating::ring, {oldest.data(), 1}, window_, 1}};
    both.oldest = {oldest.data(), 1};
    both.pages.entries = {
        .shape = shape,
        .lanes = {.layer_end = layers,
                  .heads = kv_heads,
                  .capacity = capacity - window_,
                  .count = {counts.data(), lanes, kv_heads, 1},
                  .position = {positions.data(), lanes * capacity, kv_heads * capacity, capacity}},
        .k = pages,
        .v = pages,
        .where = kv::block_table({table.data(), 0, kv_heads * pages_of_lane, pages_of_lane}, page, sentinel + 1)};
    both.pages.table = {table.data(), 0, kv_heads * pages_of_lane, pages_of_lane};
    both.pages.num_pages = {num_pages.data(), 0, kv_heads, 1};
    both.pages.free_pages = {free.data(), free_count.data(), sentinel};
    both.window.v.base = both.pages.entries.v.base = reinterpret_cast<std::byte*>(v.data());
    return both;
  }

  /// Attention reads the admitted tokens, and then the window.
  [[nodiscard]] std::vector<cached_entry> entries(int sequence, int layer, int kv_head) override {
    kv::dual_cache const both = view();
    kv::lane const lane{sequence, layer, kv_head};
    std::vector<cached_entry> all;
    for (kv::cache const& part : {both.pages.entries, both.window}) {
      for (int i = 0; i < *part.lanes.count.row(lane); ++i) {
        kv::place const at = part.where.at(lane, i);
        all.push_back({part.lanes.position.row(lane)[i], reinterpret_cast<float*>(part.k.row(layer, at, kv_head)),
                       reinterpret_cast<float*>(part.v.row(layer, at, kv_head))});
      }
    }
    return all;
  }

 private:
  int window_;
  int pages_of_lane = (capacity + page - 1) / page, sentinel = layers * kv_heads * capacity / page - 1;
  tensor<int> window_count{1}, window_positions{window_}, oldest{1};  // the window, shared by all lanes
  tensor<int> table{lanes * pages_of_lane}, num_pages{lanes};         // [layer, KV head, ...]
  tensor<int> free{sentinel}, free_count{1};                          // pages that no lane has
};
