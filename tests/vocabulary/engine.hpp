// SPDX-License-Identifier: Apache-2.0
// What every consumer of this folder is given: an engine's cache view and its signals, of any executor's memory.
#pragma once

#include <kvpolicy/kvpolicy.hpp>

namespace vocabulary {

namespace kv = kvpolicy;

/// A small engine: two layers, four query heads on two KV heads, up to 64 entries a lane, contiguous rows.
struct engine {
  static constexpr int layers = 2;
  static constexpr int kv_heads = 2;
  static constexpr int query_heads = 4;
  static constexpr int dims = 4;
  static constexpr int bound = 64;
  static constexpr int lanes = layers * kv_heads;

  std::vector<float> k = std::vector<float>(std::size_t{lanes} * bound * dims);
  std::vector<float> v = std::vector<float>(std::size_t{lanes} * bound * dims);
  std::vector<float> q = std::vector<float>(std::size_t{layers} * query_heads * bound * dims);
  std::vector<int> count = std::vector<int>(lanes);
  std::vector<int> position = std::vector<int>(std::size_t{lanes} * bound);
  std::vector<int> query_position = std::vector<int>(bound);
  int drafts = 0;

  kv::cache view() {
    kv::lanes const batch{.layer_end = layers,
                          .heads = kv_heads,
                          .capacity = bound,
                          .count = {count.data(), 0, kv_heads, 1},
                          .position = {position.data(), 0, kv_heads * bound, bound},
                          .in_flight = &drafts};
    kv::shape const model{layers, query_heads, kv_heads, dims};
    return {.shape = model, .lanes = batch, .k = rows(k), .v = rows(v), .where = kv::identity_map(bound)};
  }

  /// The query rows of the entries at positions [begin, end), as a forward computes them.
  kv::queries rows_of(int begin, int end) {
    for (int i = begin; i < end; ++i) query_position[static_cast<std::size_t>(i)] = i;
    kv::queries out;
    out.base = reinterpret_cast<std::byte const*>(q.data()) + begin * 4 * dims;
    out.dims = dims;
    out.layer = 4LL * dims * bound * query_heads;
    out.head = 4LL * dims * bound;
    out.row = 4LL * dims;
    out.heads = query_heads;
    out.rows = end - begin;
    out.position = {query_position.data() + begin, 0, 0, 0};
    return out;
  }

 private:
  static kv::plane rows(std::vector<float>& of) {
    return {.base = reinterpret_cast<std::byte*>(of.data()),
            .channels = dims,
            .layer_stride = 4LL * dims * bound * kv_heads,
            .token_stride = 4LL * dims,
            .head_stride = 4LL * dims * bound,
            .channel_stride = 4};
  }
};

}  // namespace vocabulary
