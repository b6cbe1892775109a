// SPDX-License-Identifier: Apache-2.0
// FlashInfer: kernels that read pages and tables of the caller.
#pragma once

#include <kvpolicy/engines/capabilities.hpp>
#include <kvpolicy/engines/tensor.hpp>

namespace KVPOLICY_NAMESPACE::engines {

/// The strides of a paged_kv_t in elements, between pages, tokens and heads. Channels are adjacent.
struct page_strides {
  std::int64_t page = 0;
  std::int64_t token = 0;
  std::int64_t head = 0;

  /// [pages, (2,) tokens, heads, dim]; `together`: one tensor holds the keys, then the values of each page.
  [[nodiscard]] static constexpr page_strides nhd(int tokens, int heads, int dims, bool together = false) {
    return {std::int64_t{tokens} * heads * dims * (together ? 2 : 1), std::int64_t{heads} * dims, dims};
  }
  /// [pages, (2,) heads, tokens, dim]; `together` as above.
  [[nodiscard]] static constexpr page_strides hnd(int tokens, int heads, int dims, bool together = false) {
    return {std::int64_t{tokens} * heads * dims * (together ? 2 : 1), dims, std::int64_t{tokens} * dims};
  }
  friend bool operator==(page_strides const&, page_strides const&) = default;
};

/// A pool of the caller, with one table of pages for each sequence and layer. `write_page_arrays` turns the tables into
/// indptr, indices and last_page_len. With `PerHead` each KV head has a table too, and `write_head_tables` turns the
/// tables into [heads, batch, pages].
template <bool PerHead>
struct flashinfer_pages {
  kvpolicy::shape shape{};
  std::byte* const* k_data = nullptr;  ///< one pointer for each layer
  std::byte* const* v_data = nullptr;
  codec element = codec::f16;
  int row_bytes = 0;  ///< for an opaque type: bytes of one head's row; the strides then count bytes
  page_strides k_strides{};
  page_strides v_strides{};
  int pages = 0;
  int page_size = 1;
  by_lane<int const> table{};  ///< the pages of each sequence, layer and head in the order of entries; a stride of 0
                               ///< means that all along this axis share a table

  /// The tables belong to the caller, so it can reserve any page as the dead one. FlashInfer's masks run over the
  /// entries of a sequence, not over the pool, so `masks` is empty.
  static constexpr capabilities can{.name = PerHead ? "flashinfer_heads" : "flashinfer",
                                    .tables = PerHead ? granularity::lane : granularity::layer,
                                    .lengths = PerHead ? granularity::lane : granularity::layer,
                                    .frees_tokens = true,
                                    .frees_blocks = true,
                                    .moves_rows = true,
                                    .position_gaps = true,
                                    .reserved_slot = true,
                                    .prefix_reuse = true,
                                    .opaque = "fp8, fp4 (its scales are a plane of cache.more)"};

  /// - throws: `invalid_argument` if each head has a table although the kernel takes one table for all heads, or if
  ///   rows are opaque and `row_bytes` is not given.
  [[nodiscard]] cache view(lanes const& batch) const {
    expects(PerHead || table.head == 0, "flashinfer.view", "table.head", table.head,
            "these kernels take one table for all heads");
    auto const plane_of = [&](std::byte* const* data, page_strides const& by, int dims) {
      std::int64_t const width = bytes_of(element);
      return plane{.element = element,
                   .channels = detail::row_dims("flashinfer.view", element, dims, row_bytes),
                   .unit_stride = by.page * width,
                   .token_stride = by.token * width,
                   .head_stride = by.head * width,
                   .channel_stride = width,
                   .bases = {.data = data, .layer = 1}};
    };
    return {.shape = shape,
            .lanes = batch,
            .k = plane_of(k_data, k_strides, shape.head_dim),
            .v = plane_of(v_data, v_strides, detail::value_dim(shape)),
            .where = block_table(table, page_size, pages)};
  }
};

using flashinfer = flashinfer_pages<false>;
using flashinfer_heads = flashinfer_pages<true>;

}  // namespace KVPOLICY_NAMESPACE::engines
