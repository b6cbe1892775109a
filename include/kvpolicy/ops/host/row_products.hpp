// SPDX-License-Identifier: Apache-2.0
// Products of float rows that lie at a stride, and a block of 32 packed rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/host/kernels/products.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Multiplies rows by blocks of weights, which are packed as [dims][32].
class row_products {
 public:
  explicit row_products(isa simd_level) : kernels_(logits_of_isa[simd_level].most) {}

  /// out[row][32] = scale times the products of `count` rows of `dims` numbers, which are `stride` floats apart.
  /// `follow`: how many more rows lie after these, and will be multiplied soon. The bits of a row's products do not
  /// depend on the other rows.
  void multiply(float const* rows, std::int64_t stride, int count, std::int64_t dims, float const* weights, float scale,
                float* out, int follow = 0) const {
    for (int first = 0; first < count; first += keys_of_a_tile) {
      int const left = count - first;
      void const* address[2 * keys_of_a_tile];
      for (int i = 0; i < 2 * keys_of_a_tile; ++i) {
        address[i] = rows + (first + std::min(i, left + follow - 1)) * stride;
      }
      auto const products = left <= few_rows ? kernels_.interleaved_single_key : kernels_.interleaved();
      products(address, std::min(keys_of_a_tile, left), static_cast<int>(dims), weights, scale,
               out + std::ptrdiff_t{first} * most_rows);
    }
  }

 private:
  block_products const& kernels_;
};

}  // namespace KVPOLICY_NAMESPACE::detail
