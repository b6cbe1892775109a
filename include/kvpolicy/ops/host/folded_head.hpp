// SPDX-License-Identifier: Apache-2.0
// A residual head's weights in the layout that the kernels need.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/residual.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The first floats of some memory, which begins after them then.
inline float* take_floats(float*& memory, std::int64_t floats) {
  memory += floats;
  return memory - floats;
}

/// Rows of weights in blocks of 32, packed for multiplication as [block][in][32], and the terms that do not depend on
/// the key.
struct packed_rows {
  std::int64_t out = 0;
  std::int64_t in = 0;
  float* weights = nullptr;
  float* constant = nullptr;  ///< [out, padded]
  float* slope = nullptr;     ///< [out, padded]: factor of the rule's score

  packed_rows() = default;
  packed_rows(std::int64_t rows, std::int64_t columns, float*& temp_storage)
      : out(rows),
        in(columns),
        weights(temp_storage),
        constant(temp_storage + padded() * columns),
        slope(constant + padded()) {
    std::fill_n(weights, padded() * (columns + 2), 0.0f);
    temp_storage = slope + padded();
  }
  [[nodiscard]] std::int64_t padded() const { return residual_sizes::padded(out); }
  [[nodiscard]] std::int64_t blocks() const { return padded() / residual_sizes::block; }
  [[nodiscard]] float* block(std::int64_t b) const { return weights + b * in * residual_sizes::block; }
  [[nodiscard]] float& at(std::int64_t o, std::int64_t i) const {
    return block(o / residual_sizes::block)[i * residual_sizes::block + o % residual_sizes::block];
  }
};

/// A head with the memory of one sequence folded into its weights: phi = [k | m | k m | rule] is linear in k and rule
/// when m is fixed. The weights of k are divided by the number of its terms, so that they are multiplied by sums.
struct folded_head {
  packed_rows query, key, value;
  packed_rows hidden;     ///< of a key, followed by a context
  float* last = nullptr;  ///< fc2, padded

  /// `memory`: the mean m. `terms`: the number of keys in each sum.
  folded_head(residual_head const& head, float const* memory, int terms, float*& temp_storage)
      : query(head.width, head.dims, temp_storage),
        key(head.width, head.dims, temp_storage),
        value(head.width, head.dims, temp_storage),
        hidden(head.hidden, std::int64_t{head.dims} + head.width, temp_storage),
        last(temp_storage),
        dims_(head.dims),
        terms_(static_cast<float>(terms)) {
    temp_storage = last + hidden.padded();
    std::fill(last, temp_storage, 0.0f);
    std::int64_t const phi = 3 * dims_ + 1;
    fold(query, head.w_q, head.w_q_bias, phi, memory);
    fold(hidden, head.fc1, head.fc1_bias, phi + head.width, memory);
    copy(key, head.w_k, head.w_k_bias);
    copy(value, head.w_v, head.w_v_bias);
    for (std::int64_t o = 0; o < head.hidden; ++o) {
      float const* const from = head.fc1 + o * (phi + head.width) + phi;
      for (std::int64_t i = 0; i < head.width; ++i) hidden.at(o, dims_ + i) = from[i];
      last[o] = head.fc2[o];
    }
  }

 private:
  /// `columns` is the length of a row of `from`; the first 3 D + 1 columns belong to phi.
  void fold(packed_rows const& to, float const* from, float const* bias, std::int64_t columns,
            float const* memory) const {
    for (std::int64_t o = 0; o < to.out; ++o, from += columns) {
      double constant = static_cast<double>(bias[o]);
      for (std::int64_t d = 0; d < dims_; ++d) {
        to.at(o, d) = (from[d] + from[2 * dims_ + d] * memory[d]) / terms_;
        constant += static_cast<double>(from[dims_ + d]) * static_cast<double>(memory[d]);
      }
      to.constant[o] = static_cast<float>(constant);
      to.slope[o] = from[3 * dims_];
    }
  }
  void copy(packed_rows const& to, float const* from, float const* bias) const {
    for (std::int64_t o = 0; o < to.out; ++o) {
      for (std::int64_t d = 0; d < dims_; ++d) to.at(o, d) = from[o * dims_ + d] / terms_;
      to.constant[o] = bias[o];
    }
  }

  std::int64_t dims_;
  float terms_;
};

}  // namespace KVPOLICY_NAMESPACE::detail
