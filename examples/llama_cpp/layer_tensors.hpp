// SPDX-License-Identifier: Apache-2.0
// The tensors of a layer's cache in llama.cpp.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstring>

namespace llama_cpp {

/// The tensors of a layer's cache, and how its attention multiplies query rows with the keys.
struct layer_tensors {
  ggml_tensor* k = nullptr;
  ggml_tensor* v = nullptr;
  int query_dims = 0;
  int query_heads = 0;
  bool rotated = false;  ///< queries and keys are turned by one matrix before the keys are quantised
  float scale = 0;       ///< by which logits are multiplied
  float softcap = 0;     ///< 0: none, -1: there is one of unknown size
  float max_bias = 0;    ///< of ALiBi; 0: none
  bool sinks = false;    ///< the softmax has a sink logit for each head
};

namespace detail {

/// Copies a cell of a tensor whose rows are cells.
inline void copy_row(ggml_tensor const& of, int from, int to) {
  auto* const rows = static_cast<std::byte*>(of.data);
  std::memcpy(rows + static_cast<std::size_t>(to) * of.nb[1], rows + static_cast<std::size_t>(from) * of.nb[1],
              ggml_row_size(of.type, of.ne[0]));
}

/// Copies a cell of a tensor of `cells` cells in which the cells of a channel are adjacent.
inline void copy_column(ggml_tensor const& of, int from, int to, int cells) {
  std::size_t const bytes = ggml_type_size(of.type);
  for (std::int64_t channel = 0; channel < of.ne[0]; ++channel) {
    auto* const row = static_cast<std::byte*>(of.data) + static_cast<std::size_t>(channel * cells) * bytes;
    std::memcpy(row + static_cast<std::size_t>(to) * bytes, row + static_cast<std::size_t>(from) * bytes, bytes);
  }
}

}  // namespace detail
}  // namespace llama_cpp
