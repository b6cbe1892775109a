// TensorRT-LLM: pools of blocks that hold a block of every layer, keys before values.
#pragma once

#include <kvpolicy/engines/capabilities.hpp>
#include <kvpolicy/engines/tensor.hpp>
#include <limits>
#include <span>

namespace KVPOLICY_NAMESPACE::engines {

/// A primary pool: [blocks, layers, 2, heads, tokens, dim] of the layers that have equally many heads and one window.
struct tensorrt_llm {
  kvpolicy::shape shape{};
  std::byte* pool = nullptr;
  codec element = codec::f16;
  int row_bytes = 0;  ///< of an opaque type: bytes of one head's row
  int max_blocks = 0;
  int tokens_per_block = 64;
  int const* block_ids = nullptr;  ///< blocks of each sequence: `read_offsets` makes them of the engine's table
  std::int64_t max_blocks_per_sequence = 0;

  /// A sequence's table belongs to the block manager, which takes blocks back from its end.
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

  /// Block numbers of one sequence from its row of key offsets: an offset counts the halves of a layer's block, its
  /// sign bit marks the secondary pool, and the largest number a place that is not set.
  ///
  /// - throws: `invalid_argument` if an offset is not set, of the secondary pool, or not where a block's keys begin.
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
