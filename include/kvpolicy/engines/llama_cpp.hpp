// SPDX-License-Identifier: Apache-2.0
// llama.cpp: one K and one V tensor for each layer, and one cell index for all layers and heads.
#pragma once

#include <kvpolicy/engines/capabilities.hpp>
#include <kvpolicy/engines/tensor.hpp>

namespace KVPOLICY_NAMESPACE::engines {

/// The cells of one stream of a llama.cpp context. (With a unified cache there is one stream for all sequences.) A cell
/// of K holds the rows of all heads of one token. V has the same layout with flash attention. Without it V is
/// transposed: it has one row for each channel, in which the cells are adjacent.
///
/// A pool of several streams needs one view for each stream, whose pointers are nb[2] bytes apart.
template <bool FlashAttention>
struct llama_cpp_cells {
  kvpolicy::shape shape{};
  std::byte* const* k = nullptr;  ///< the data of cache_k_l0, cache_k_l1, ...
  std::byte* const* v = nullptr;  ///< the data of cache_v_l0, ...
  codec type_k = codec::f16;
  codec type_v = codec::f16;
  int k_row_bytes = 0;  ///< for an opaque type (q8_0, q4_0, ...): bytes of one head's row
  int v_row_bytes = 0;
  int kv_size = 0;             ///< cells of the stream
  by_lane<int const> cells{};  ///< the cell of each entry: one row for each sequence and separately masked lane

  /// Tokens leave by a call that takes their positions; the engine then masks their cells and reuses them. The mask can
  /// be edited for each layer and head before the softmax. With flash attention the heads of a layer share one.
  static constexpr capabilities can{.name = FlashAttention ? "llama_cpp_flash" : "llama_cpp",
                                    .masks = FlashAttention ? granularity::layer : granularity::lane,
                                    .frees_tokens = true,
                                    .moves_rows = true,
                                    .position_gaps = true,
                                    .prefix_reuse = true,
                                    .opaque = FlashAttention ? "q8_0, q5_0, q5_1, q4_0, q4_1, iq4_nl"
                                                             : "keys only: q8_0, q5_0, q5_1, q4_0, q4_1, iq4_nl"};

  /// - throws: `invalid_argument` if values are transposed and opaque, because a row would not be contiguous, or if
  ///   rows are opaque and their row bytes are not given.
  [[nodiscard]] cache view(lanes const& batch) const {
    expects(FlashAttention || type_v != codec::opaque, "llama_cpp.view", "type_v", "opaque",
            "quantised values need flash attention");
    extents const of_k{1, kv_size, shape.kv_heads, 1,
                       detail::row_dims("llama_cpp.view", type_k, shape.head_dim, k_row_bytes)};
    extents const of_v{1, kv_size, shape.kv_heads, 1,
                       detail::row_dims("llama_cpp.view", type_v, detail::value_dim(shape), v_row_bytes)};
    return {.shape = shape,
            .lanes = batch,
            .k = dense_plane("BNHD", of_k, type_k, {.layers = k}),
            .v = dense_plane(FlashAttention ? "BNHD" : "HDNB", of_v, type_v, {.layers = v}),
            .where = slot_map(cells, kv_size)};
  }
};

using llama_cpp = llama_cpp_cells<false>;
using llama_cpp_flash = llama_cpp_cells<true>;

}  // namespace KVPOLICY_NAMESPACE::engines
