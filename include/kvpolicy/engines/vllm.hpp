// SPDX-License-Identifier: Apache-2.0
// vLLM: blocks of tokens, and one block table for all layers of a cache group.
#pragma once

#include <kvpolicy/engines/capabilities.hpp>
#include <kvpolicy/engines/tensor.hpp>
#include <utility>

namespace KVPOLICY_NAMESPACE::engines {

/// The pool of one KV cache group. Its tensors are dense, in one of the orders below: one tensor for each layer, or one
/// for all layers, in which the key and the value of a token and head are adjacent ("packed").
struct vllm {
  /// Orders of axes, see `extents`. In an order without L each layer has a tensor of its own.
  static constexpr std::string_view flash_attention = "SBNHD", flash_infer_nhd = "BSNHD", flash_infer_hnd = "BSHND";
  /// Attention on a processor without AMX: in each block and head the keys, transposed, and then the values.
  static constexpr std::string_view cpu_keys = "BHSDN", cpu_values = "BHSND";
  static constexpr std::string_view packed_lbhn = "LBHNSD", packed_lbnh = "LBNHSD", packed_lhbn = "LHBNSD",
                                    packed_blhn = "BLHNSD", packed_blnh = "BLNHSD", packed_bhln = "BHLNSD";

  kvpolicy::shape shape{};
  std::string_view order = flash_attention;
  std::string_view value_order{};  ///< of the values, if it is another one
  std::byte* base = nullptr;       ///< the tensor of all layers, if the order has L
  std::byte* const* k = nullptr;   ///< otherwise one pointer for each layer, to the beginning of its keys
  std::byte* const* v = nullptr;   ///< the same for its values
  codec element = codec::bf16;
  int row_bytes = 0;    ///< for an opaque type: bytes of one head's key, and of its value
  int num_blocks = 0;   ///< block 0 is the null block
  int block_size = 16;  ///< tokens of a kernel's block, which may be smaller than a block of the block manager
  int const* block_table = nullptr;
  std::int64_t max_blocks = 0;  ///< ints between the rows of requests

  static constexpr capabilities can{.name = "vllm",
                                    .frees_blocks = true,
                                    .moves_rows = true,
                                    .position_gaps = true,
                                    .prefix_reuse = true,
                                    .opaque = "fp8, int8"};

  /// - throws: `invalid_argument` if an order is not one of axes with S, if one of both has L and the other one not, if
  ///   the pointers that they need are null, if keys and values have different head sizes, or if rows are opaque and
  ///   `row_bytes` is not given.
  [[nodiscard]] cache view(lanes const& batch) const {
    bool const together = order.find('L') != std::string_view::npos;
    std::string_view const of_values = value_order.empty() ? order : value_order;
    for (auto const& [name, each] : {std::pair{"order", order}, std::pair{"value_order", of_values}}) {
      expects(is_order(each) && each.find('S') != std::string_view::npos &&
                  (each.find('L') != std::string_view::npos) == together,
              "vllm.view", name, each,
              "an order names each of S, B, N, H, D once, and L if there is one tensor for all layers");
    }
    expects(together ? base != nullptr : k != nullptr && v != nullptr, "vllm.view", together ? "base" : "k and v",
            "null", together ? "one tensor holds all layers" : "every layer has a tensor of its own");
    detail::check_packed("vllm.view", shape);
    extents const of{shape.layers, num_blocks, shape.kv_heads, block_size,
                     detail::row_dims("vllm.view", element, shape.head_dim, row_bytes)};
    origin const keys = together ? origin{.base = base} : origin{.layers = k};
    origin const values = together ? origin{.base = base} : origin{.layers = v};
    return {.shape = shape,
            .lanes = batch,
            .k = dense_plane(order, of, element, keys, 0),
            .v = dense_plane(of_values, of, element, values, 1),
            .where = kvpolicy::block_table({block_table, max_blocks}, block_size, num_blocks)};
  }
};

}  // namespace KVPOLICY_NAMESPACE::engines
