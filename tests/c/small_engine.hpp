// SPDX-License-Identifier: Apache-2.0
// An engine that speaks C: a small cache, query rows, a policy and its state.
#pragma once

#include <kvpolicy/c/kvpolicy.h>

#include "support/test.hpp"

namespace c_test {

/// Two sequences of a model with two layers of two KV heads, in one contiguous cache, and query rows.
struct small_engine {
  static constexpr int layers = 2, query_heads = 4, kv_heads = 2, dim = 4, sequences = 2, capacity = 8, rows = 1;
  static constexpr int block = capacity / 2;
  std::vector<float> keys = std::vector<float>(std::size_t{sequences} * capacity * layers * kv_heads * dim, 1.0f);
  std::vector<float> values = keys;
  std::vector<float> queries = std::vector<float>(std::size_t{sequences} * layers * query_heads * rows * dim, 1.0f);
  std::vector<float> mass = std::vector<float>(std::size_t{sequences} * layers * kv_heads * capacity, 1.0f);
  std::vector<int> counts = std::vector<int>(std::size_t{sequences} * layers * kv_heads, 0);
  std::vector<int> positions = std::vector<int>(counts.size() * capacity, 0);
  std::vector<int> slots = std::vector<int>(counts.size() * capacity, 0);
  std::vector<int> blocks = {3, 1, 0, 2};  // of `block` tokens, two for each sequence
  std::vector<int> row_positions = {2, 2};
  std::vector<int> valid_rows = {1, 1};
  kvpolicy_cache cache{};
  kvpolicy_queries rows_of{};
  kvpolicy_signals signals{};
  kvpolicy_policy* policy = nullptr;
  kvpolicy_state* state = nullptr;

  explicit small_engine(char const* spec = "snapkv(window=1) | budget(2)") {
    constexpr std::int64_t head = dim * sizeof(float);
    constexpr std::int64_t token = head * kv_heads;
    constexpr std::int64_t layer = token * capacity;
    kvpolicy_plane const plane{keys.data(), KVPOLICY_F32, dim, layer, layer * layers, token, head, sizeof(float)};
    cache = {.layers = layers,
             .query_heads = query_heads,
             .kv_heads = kv_heads,
             .head_dim = dim,
             .value_dim = 0,
             .sequences = sequences,
             .capacity = capacity,
             .keys = plane,
             .values = plane,
             .counts = counts.data(),
             .positions = positions.data(),
             .slots = nullptr,
             .slot_count = 0,
             .blocks = nullptr,
             .block_size = 0,
             .block_count = 0};
    cache.values.data = values.data();
    rows_of = {.data = queries.data(),
               .element = KVPOLICY_F32,
               .rows = rows,
               .sequence_stride = head * rows * query_heads * layers,
               .layer_stride = head * rows * query_heads,
               .head_stride = head * rows,
               .row_stride = head,
               .positions = row_positions.data(),
               .valid_rows = valid_rows.data()};
    signals = {&rows_of, nullptr, nullptr};
    REQUIRE(kvpolicy_parse(spec, &policy) == KVPOLICY_OK);
  }
  small_engine(small_engine const&) = delete;
  small_engine& operator=(small_engine const&) = delete;
  ~small_engine() {
    kvpolicy_state_destroy(state);
    kvpolicy_policy_destroy(policy);
  }
  kvpolicy_status make() { return kvpolicy_make(policy, &cache, 1, &state); }
  /// Rows are in blocks of a pool that has the memory of the contiguous cache.
  void use_blocks() {
    cache.blocks = blocks.data();
    cache.block_size = block;
    cache.block_count = 2 * sequences;
    for (kvpolicy_plane* const plane : {&cache.keys, &cache.values}) {
      plane->layer_stride = plane->token_stride * block;
      plane->unit_stride = plane->layer_stride * layers;
    }
  }
  void fill() {
    REQUIRE(make() == KVPOLICY_OK);
    for (int s = 0; s < sequences; ++s) REQUIRE(kvpolicy_append(state, s, 3, 0) == KVPOLICY_OK);
  }
};

}  // namespace c_test
