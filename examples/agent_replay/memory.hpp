// SPDX-License-Identifier: Apache-2.0
// The memory that all sessions share: rows of keys and values, the slot allocator, and the prefix tree.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <vector>

#include "radix_tree.hpp"

namespace agent_replay {

/// The pool of slots. A slot holds one token in every layer and head: [slot][layer][kv head][K, V][D], float32.
class token_memory {
 public:
  token_memory(kv::shape const& model, int count) : slots(count), tree(slots), model_(model) {
    rows_.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(slot_floats()));
  }

  slot_allocator slots;
  radix_tree tree;

  [[nodiscard]] kv::shape const& model() const { return model_; }
  [[nodiscard]] int lanes() const { return model_.layers * model_.kv_heads; }
  [[nodiscard]] std::span<float> slot(int which) {
    return std::span(rows_).subspan(static_cast<std::size_t>(which) * static_cast<std::size_t>(slot_floats()),
                                    static_cast<std::size_t>(slot_floats()));
  }

  [[nodiscard]] kv::plane keys() {
    std::int64_t const row = std::int64_t{model_.head_dim} * 4;
    return {.base = reinterpret_cast<std::byte*>(rows_.data()),
            .element = kv::codec::f32,
            .channels = model_.head_dim,
            .layer_stride = 2 * row * model_.kv_heads,
            .unit_stride = std::int64_t{slot_floats()} * 4,
            .token_stride = std::int64_t{slot_floats()} * 4,
            .head_stride = 2 * row,
            .channel_stride = 4};
  }
  [[nodiscard]] kv::plane values() {
    kv::plane beside = keys();
    beside.base += std::int64_t{model_.head_dim} * 4;
    return beside;
  }

 private:
  [[nodiscard]] int slot_floats() const { return 2 * model_.head_dim * lanes(); }

  kv::shape model_;
  std::vector<float> rows_;
};

}  // namespace agent_replay
