// SGLang: one K and one V buffer a layer, a row of slots for each request.
#pragma once

#include <kvpolicy/engines/capabilities.hpp>
#include <kvpolicy/engines/tensor.hpp>

namespace KVPOLICY_NAMESPACE::engines {

/// A pool of single slots: k_buffer[l] and v_buffer[l] are [size + 1, heads, dim], and slot 0 is nobody's.
///
/// `list` is what the kernels are told to read. With list_rewrite that is req_to_token itself; with dead_slot
/// req_to_token stays the map of positions, and `list` is a table of the live slots beside it.
struct sglang {
  kvpolicy::shape shape{};
  std::byte* const* k_buffer = nullptr;  ///< one pointer a layer
  std::byte* const* v_buffer = nullptr;
  codec element = codec::bf16;
  int row_bytes = 0;             ///< of an opaque type: bytes of one head's row
  int size = 0;                  ///< slots that tokens may have: 1 .. size
  int const* list = nullptr;     ///< slots of each request, in the order of entries
  std::int64_t list_stride = 0;  ///< ints between the rows of requests: max_context_len
  int const* first =
      nullptr;  ///< where each sequence's row begins, in ints: req_pool_index * list_stride. Null: rows in turn

  /// The slot that padding is written to.
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
