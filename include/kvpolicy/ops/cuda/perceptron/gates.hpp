// SPDX-License-Identifier: Apache-2.0
// What the gates share, which are perceptrons with packed weights: their task, and the scratch between two launches.
#pragma once

#include <kvpolicy/ops/cuda/perceptron/perceptron.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The task of a gate for a tile of `Rows`. `Activation` is that of a hidden unit.
template <class Rows, float (*Activation)(float)>
struct gate_tile {
  Rows rows;
  float_rows fc1;
  float const* bias;
  float const* fc2;  ///< [outputs][hidden]
  int hidden;
  bool has_work = true;

  template <class Block>
  KVPOLICY_HD static void prepare(Block&, int, int) {}
  [[nodiscard]] KVPOLICY_HD Rows const& row() const { return rows; }
  [[nodiscard]] KVPOLICY_HD float_rows weight_from(int unit) const {
    return {fc1.from + std::int64_t{unit} * fc1.stride, fc1.stride};
  }
  [[nodiscard]] KVPOLICY_HD float activation(int, int unit, float sum) const { return Activation(sum + bias[unit]); }
  [[nodiscard]] KVPOLICY_HD float output_weight(int output, int unit) const {
    return fc2[std::int64_t{output} * hidden + unit];
  }
};

/// The number of entries of a lane for which scratch holds partial sums of slices. More entries keep a device busy
/// without slices of their own.
inline constexpr int split_entries = 64;

/// Floats of scratch for gates with these weights, which have outputs of all layers and heads.
template <class Weights>
[[nodiscard]] constexpr std::int64_t gate_parts(Weights const& weights) {
  return std::int64_t{weights.layers} * weights.heads * split_entries * perceptron_work::slices_of(weights.hidden);
}

}  // namespace KVPOLICY_NAMESPACE::detail
