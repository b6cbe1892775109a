// SPDX-License-Identifier: Apache-2.0
// The least memory that can be called a cache: one layer, one head, eight entries of four channels.
#pragma once

#include <array>
#include <kvpolicy/kvpolicy.hpp>
#include <vector>

namespace tiny {

namespace kv = kvpolicy;

inline constexpr int entries = 8;
inline constexpr int channels = 4;

/// Entry i has a key of norm `norms[i]`, so that anyone can see what `knorm` keeps: the smallest.
struct memory {
  static constexpr std::array<float, entries> norms{9, 8, 1, 7, 2, 6, 3, 5};
  std::vector<float> k = std::vector<float>(entries * channels);
  std::vector<float> v = k;
  int count = entries;
  std::array<int, entries> positions{};

  memory() {
    for (std::size_t i = 0; i < entries; ++i) {
      k[i * channels] = norms[i];
      positions[i] = static_cast<int>(i);
    }
  }

  kv::cache view() {
    kv::plane const rows{.base = reinterpret_cast<std::byte*>(k.data()),
                         .element = kv::codec::f32,
                         .channels = channels,
                         .layer_stride = 4LL * channels * entries,
                         .unit_stride = 4LL * channels * entries,
                         .token_stride = 4LL * channels,
                         .head_stride = 4LL * channels * entries,
                         .channel_stride = 4};
    kv::cache cache{.shape = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = channels},
                    .k = rows,
                    .v = rows,
                    .where = kv::identity_map(entries)};
    cache.v.base = reinterpret_cast<std::byte*>(v.data());
    cache.lanes = {.layer_end = 1, .heads = 1, .capacity = entries, .count = {&count}, .position = {positions.data()}};
    return cache;
  }
};

using policy = kv::eviction<kv::knorm, kv::sinks>;
using plan = kv::plan<kv::host_executor>;
using state = kv::state<kv::host_executor>;

/// The first entry and the three smallest keys.
inline constexpr policy four_entries{.score = {}, .protect = {1}, .budget = {4}};
inline constexpr std::array<int, 4> kept{0, 2, 4, 6};

}  // namespace tiny
