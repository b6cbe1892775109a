// SPDX-License-Identifier: Apache-2.0
// The scratch that gates use between two launches.
#pragma once

#include <kvpolicy/ops/cuda/perceptron/perceptron.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The number of entries of a lane for which scratch holds partial sums of slices. More entries keep a device busy
/// without slices of their own.
inline constexpr int split_entries = 64;

/// Floats of scratch for gates with these weights, which have outputs of all layers and heads.
template <class Weights>
[[nodiscard]] constexpr std::int64_t gate_parts(Weights const& weights) {
  return std::int64_t{weights.layers} * weights.heads * split_entries * perceptron_work::slices_of(weights.hidden);
}
template <class Weights>
[[nodiscard]] constexpr std::size_t gate_bytes(Weights const& weights) {
  return static_cast<std::size_t>(gate_parts(weights)) * sizeof(float);
}

}  // namespace KVPOLICY_NAMESPACE::detail
