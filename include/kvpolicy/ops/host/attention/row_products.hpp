// Products of float rows that lie at a stride, and a block of 32 packed rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <kvpolicy/ops/host/kernels/products.hpp>
#include <kvpolicy/ops/residual.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Multiplies rows by blocks of weights, which are packed as [dims][32].
class row_products {
 public:
  using sizes = residual_sizes;
  static_assert(sizes::rows_of_a_tile <= keys_of_a_tile, "a tile is multiplied in one call");

  explicit row_products(isa simd_level) : blocks_(logits_of_isa[simd_level][sizes::block]) {}

  /// out[row][32] = scale times the products of `count` rows of `dims` numbers. `follow`: how many more rows lie behind
  /// these, and will be multiplied soon.
  void multiply(float const* rows, std::int64_t stride, int count, std::int64_t dims, float const* weights, float scale,
                float* out, int follow = 0) {
    for (int first = 0; first < count; first += sizes::rows_of_a_tile) {
      multiply_tile(rows + first * stride, stride, count - first, follow, dims, weights, scale,
                    out + std::ptrdiff_t{first} * sizes::block);
    }
  }

 private:
  void multiply_tile(float const* row, std::int64_t stride, int left, int follow, std::int64_t dims,
                     float const* weights, float scale, float* out) {
    for (int i = 0; i < 2 * keys_of_a_tile; ++i, row += i < left + follow ? stride : 0) address_[i] = row;
    blocks_.logits()(address_, std::min(sizes::rows_of_a_tile, left), static_cast<int>(dims), weights, scale, out);
  }

  product_kernels const& blocks_;
  void const* address_[2 * keys_of_a_tile] = {};
};

}  // namespace KVPOLICY_NAMESPACE::detail
