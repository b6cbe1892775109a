// FlashInfer: kernels over pages and tables that the caller makes.
#pragma once

#include <kvpolicy/engines/capabilities.hpp>
#include <kvpolicy/engines/tensor.hpp>

namespace KVPOLICY_NAMESPACE::engines {

/// Elements between pages, tokens and heads of a paged_kv_t; channels stand side by side.
struct page_strides {
  std::int64_t page = 0;
  std::int64_t token = 0;
  std::int64_t head = 0;

  /// [pages, (2,) tokens, heads, dim]; `together`: keys and values of a page in turn.
  [[nodiscard]] static constexpr page_strides nhd(int tokens, int heads, int dims, bool together = false) {
    return {std::int64_t{tokens} * heads * dims * (together ? 2 : 1), std::int64_t{heads} * dims, dims};
  }
  /// [pages, (2,) heads, tokens, dim]
  [[nodiscard]] static constexpr page_strides hnd(int tokens, int heads, int dims, bool together = false) {
    return {std::int64_t{tokens} * heads * dims * (together ? 2 : 1), dims, std::int64_t{tokens} * dims};
  }
  friend bool operator==(page_strides const&, page_strides const&) = default;
};

/// A pool of the caller's, and a table of pages for each sequence and layer, which `write_page_arrays` turns into
/// indptr, indices and last_page_len; with `PerHead` one for each KV head too, which `write_head_tables` turns into
/// [heads, batch, pages].
template <bool PerHead>
struct flashinfer_pages {
  kvpolicy::shape shape{};
  std::byte* const* k_data = nullptr;  ///< one pointer a layer
  std::byte* const* v_data = nullptr;
  codec element = codec::f16;
  int row_bytes = 0;  ///< of an opaque type: bytes of one head's row, and what the strides count
  page_strides k_strides{};
  page_strides v_strides{};
  int pages = 0;
  int page_size = 1;
  by_lane<int const> table{};  ///< pages of each sequence (layer, head), in the order of entries; stride 0: shared

  /// Tables are the caller's, so any of its pages may be the dead one. A mask runs over the entries of a sequence, not
  /// over the pool.
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

  /// - throws: `invalid_argument` if heads have tables of their own and the kernel takes none.
  [[nodiscard]] cache view(lanes const& batch) const {
    expects(PerHead || table.head == 0, "flashinfer.view", "table.head", table.head,
            "these kernels take one table for all heads");
    auto const plane_of = [&](std::byte* const* data, page_strides const& by, int dims) {
      std::int64_t const width = bytes_of(element);
      return plane{.element = element,
                   .dims = detail::row_dims("flashinfer.view", element, dims, row_bytes),
                   .unit = by.page * width,
                   .token = by.token * width,
                   .head = by.head * width,
                   .dim = width,
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
