// SPDX-License-Identifier: Apache-2.0
// OpenVINO GenAI: one K and one V tensor for each layer, and with eviction one block table for each layer.
#pragma once

#include <kvpolicy/engines/capabilities.hpp>
#include <kvpolicy/engines/tensor.hpp>

namespace KVPOLICY_NAMESPACE::engines {

/// The tensors of each layer are [blocks, heads, tokens, dim]. A row of a quantised type also holds its scale and zero
/// point.
struct openvino {
  kvpolicy::shape shape{};
  std::byte* const* k = nullptr;  ///< one pointer for each layer
  std::byte* const* v = nullptr;
  codec element = codec::f16;
  int row_bytes = 0;  ///< for an opaque type: bytes of one head's row, its scale and zero point included
  int num_blocks = 0;
  int block_size = 32;                ///< 32 on a CPU, 16 or 256 on a GPU
  by_lane<int const> block_tables{};  ///< one row for each sequence and layer; the `head` stride is 0

  /// The pipeline drops whole blocks, and equally many in every layer. It does not rewrite rows.
  static constexpr capabilities can{.name = "openvino",
                                    .tables = granularity::layer,
                                    .lengths = granularity::sequence,
                                    .frees_blocks = true,
                                    .position_gaps = true,
                                    .prefix_reuse = true,
                                    .opaque = "u8, i8, u4, i4"};

  [[nodiscard]] cache view(lanes const& batch) const {
    auto const plane_of = [&](std::byte* const* data, int dims) {
      extents const of{1, num_blocks, shape.kv_heads, block_size,
                       detail::row_dims("openvino.view", element, dims, row_bytes)};
      return dense_plane("BHND", of, element, {.layers = data});
    };
    return {.shape = shape,
            .lanes = batch,
            .k = plane_of(k, shape.head_dim),
            .v = plane_of(v, detail::value_dim(shape)),
            .where = block_table(block_tables, block_size, num_blocks)};
  }
};

}  // namespace KVPOLICY_NAMESPACE::engines
