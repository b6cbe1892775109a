// SPDX-License-Identifier: Apache-2.0
// The memory of a toy engine, for the short examples.
#pragma once

#include <cmath>
#include <cstdio>
#include <kvpolicy/kvpolicy.hpp>
#include <vector>

namespace kv = kvpolicy;

// example-begin view
/// An engine's paged pool: [layer][page][head][token][dim] in bf16, with separate keys and values, and one block table
/// for all lanes.
struct my_pool {
  static constexpr int layers = 2, query_heads = 8, kv_heads = 2, dims = 16, page = 16, pages = 32, bound = 256;
  std::vector<std::uint16_t> k = std::vector<std::uint16_t>(layers * pages * kv_heads * page * dims);
  std::vector<std::uint16_t> v = k;
  std::vector<int> table = std::vector<int>(bound / page);  // the page of the entries 16 i .. 16 i + 15
  std::vector<int> counts = std::vector<int>(layers * kv_heads);
  std::vector<int> positions = std::vector<int>(layers * kv_heads * bound);

  kv::cache view() {
    kv::plane const rows{.base = reinterpret_cast<std::byte*>(k.data()),
                         .element = kv::codec::bf16,
                         .channels = dims,
                         .layer_stride = 2LL * dims * page * kv_heads * pages,
                         .unit_stride = 2LL * dims * page * kv_heads,
                         .token_stride = 2LL * dims,
                         .head_stride = 2LL * dims * page,
                         .channel_stride = 2};  // strides in bytes
    kv::cache cache{.shape = {layers, query_heads, kv_heads, dims},
                    .k = rows,
                    .v = rows,
                    .where = kv::block_table({table.data()}, page, pages)};
    cache.v.base = reinterpret_cast<std::byte*>(v.data());
    cache.lanes = {.layer_end = layers,
                   .heads = kv_heads,
                   .capacity = bound,
                   .count = {counts.data(), 0, kv_heads, 1},
                   .position = {positions.data(), 0, kv_heads * bound, bound}};
    return cache;
  }
};
// example-end view

/// A forward of `tokens` tokens, with pseudo-random keys, values and queries that are the same on every machine.
struct my_forward {
  explicit my_forward(my_pool& pool, int tokens)
      : rows(static_cast<std::size_t>(my_pool::layers * my_pool::query_heads * tokens * my_pool::dims)) {
    for (std::size_t page = 0; page < pool.table.size(); ++page) pool.table[page] = static_cast<int>(page * 7 % 32);
    for (auto& value : pool.k) value = kv::to_bf16(next());
    for (auto& value : pool.v) value = kv::to_bf16(next());
    for (auto& value : rows) value = next();
    for (int i = 0; i < tokens; ++i) positions.push_back(i);
  }

  [[nodiscard]] kv::queries queries() const {
    kv::shape const model{my_pool::layers, my_pool::query_heads, my_pool::kv_heads, my_pool::dims};
    return kv::queries_of(rows.data(), model, static_cast<int>(positions.size()), positions.data(),
                          {.order = kv::axis_order::hnd});
  }

  std::vector<float> rows;
  std::vector<int> positions;

 private:
  float next() {
    seed_ = seed_ * 1664525u + 1013904223u;
    return static_cast<float>(seed_ >> 8) / 8388608.0f - 1.0f;
  }
  std::uint32_t seed_ = 1;
};
