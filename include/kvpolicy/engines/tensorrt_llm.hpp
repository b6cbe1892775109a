// SPDX-License-Identifier: Apache-2.0
// TensorRT-LLM: pools of blocks. A block of a pool holds one block of every layer, keys before values.
#pragma once

#include <kvpolicy/engines/capabilities.hpp>
#include <kvpolicy/engines/tensor.hpp>
#include <limits>
#include <span>

namespace KVPOLICY_NAMESPACE::engines {

/// A primary pool [blocks, layers, 2, heads, tokens, dim]. Its layers have the same number of heads and the same
/// attention window.
struct tensorrt_llm {
  kvpolicy::shape shape{};
  std::byte* pool = nullptr;
  codec element = codec::f16;
  int row_bytes = 0;  ///< for an opaque type: bytes of one head's row
  int max_blocks = 0;
  int tokens_per_block = 64;
  int const* block_ids = nullptr;  ///< the blocks of each sequence; `read_offsets` computes them
  std::int64_t max_blocks_per_sequence = 0;

  /// A sequence's table belongs to the block manager, which only frees blocks from its end.
  static constexpr capabilities can{.name = "tensorrt_llm",
                                    .moves_rows = true,
                                    .position_gaps = true,
                                    .prefix_reuse = true,
                                    .opaque = "fp8, nvfp4 (its scales are a plane of cache.more)"};

  [[nodiscard]] cache view(lanes const& batch) const {
    detail::check_packed("tensorrt_llm.view", shape);
    extents const of{shape.layers, max_blocks, shape.kv_heads, tokens_per_block,
                     detail::row_dims("tensorrt_llm.view", element, shape.head_dim, row_bytes)};
    return {.shape = shape,
            .lanes = batch,
            .k = dense_plane("BLSHND", of, element, {.base = pool}, 0),
            .v = dense_plane("BLSHND", of, element, {.base = pool}, 1),
            .where = block_table({block_ids, max_blocks_per_sequence}, tokens_per_block, max_blocks)};
  }

  /// Computes the block numbers of one sequence from its row of key offsets. An offset counts the keys and the values
  /// of each layer of a block as one each. Its sign bit marks the secondary pool, and the largest 32-bit integer marks
  /// an offset that is not set.
  ///
  /// - out: `ids`, one for each offset.
  /// - throws: `invalid_argument` if an offset is not set, belongs to the secondary pool, or does not point to the keys
  ///   of a block's first layer. Nothing is written then.
  void read_offsets(std::span<std::int32_t const> offsets, int* ids) const {
    std::int32_t const halves = 2 * shape.layers;
    for (std::int32_t const offset : offsets) {
      expects(offset >= 0, "tensorrt_llm.read_offsets", "offset", offset,
              "blocks of the secondary pool are out of reach");
      expects(offset != std::numeric_limits<std::int32_t>::max(), "tensorrt_llm.read_offsets", "offset", offset,
              "this place of the table is not set");
      expects(offset % halves == 0 && offset / halves < max_blocks, "tensorrt_llm.read_offsets", "offset", offset,
              "no block's keys begin there");
    }
    for (std::size_t i = 0; i < offsets.size(); ++i) ids[i] = offsets[i] / halves;
  }
};

}  // namespace KVPOLICY_NAMESPACE::engines
