// SPDX-License-Identifier: Apache-2.0
// SGLang: one K and one V buffer for each layer, and one row of slots for each request.
#pragma once

#include <kvpolicy/engines/capabilities.hpp>
#include <kvpolicy/engines/tensor.hpp>

namespace KVPOLICY_NAMESPACE::engines {

/// A pool of slots for single tokens: k_buffer[l] and v_buffer[l] are [size + 1, heads, dim], and slot 0 belongs to no
/// request.
///
/// `list` holds the slots that the kernels read. With `list_rewrite` it is req_to_token itself. With `dead_slot`
/// req_to_token stays the map of positions, and `list` is a separate table of the live slots.
struct sglang {
  kvpolicy::shape shape{};
  std::byte* const* k_buffer = nullptr;  ///< one pointer for each layer
  std::byte* const* v_buffer = nullptr;
  codec element = codec::bf16;
  int row_bytes = 0;             ///< for an opaque type: bytes of one head's row
  int size = 0;                  ///< tokens have the slots 1 .. size
  int const* list = nullptr;     ///< the slots of each request, in the order of entries
  std::int64_t list_stride = 0;  ///< ints between the rows of requests: max_context_len
  /// For each sequence the index of its row's first int in `list`: req_pool_index * list_stride. Null: sequence s has
  /// row s.
  int const* first = nullptr;

  /// The slot to which SGLang writes padding.
  static constexpr int dead = 0;

  static constexpr capabilities can{.name = "sglang",
                                    .frees_tokens = true,
                                    .moves_rows = true,
                                    .position_gaps = true,
                                    .reserved_slot = true,
                                    .prefix_reuse = true,
                                    .opaque = "fp8, fp4"};

  [[nodiscard]] cache view(lanes const& batch) const {
    auto const plane_of = [&](std::byte* const* buffer, int dims) {
      extents const of{1, std::int64_t{size} + 1, shape.kv_heads, 1,
                       detail::row_dims("sglang.view", element, dims, row_bytes)};
      return dense_plane("BNHD", of, element, {.layers = buffer});
    };
    return {.shape = shape,
            .lanes = batch,
            .k = plane_of(k_buffer, shape.head_dim),
            .v = plane_of(v_buffer, detail::value_dim(shape)),
            .where = first != nullptr ? csr_pages({list}, {first, 1}, 1, std::int64_t{size} + 1)
                                      : slot_map({list, list_stride}, std::int64_t{size} + 1)};
  }
};

}  // namespace KVPOLICY_NAMESPACE::engines
