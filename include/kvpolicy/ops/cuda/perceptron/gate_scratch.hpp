// SPDX-License-Identifier: Apache-2.0
// The scratch that gates use between two launches.
#pragma once

#include <kvpolicy/ops/cuda/perceptron/perceptron.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The number of entries of a lane for which scratch holds partial sums of slices. More entries keep a device busy
/// without slices of their own.
inline constexpr int split_entries = 64;

/// Floats of scratch for gates that have `outputs` outputs in all layers together.
[[nodiscard]] constexpr std::int64_t gate_parts(std::int64_t outputs, int hidden) {
  return outputs * split_entries * perceptron_work::slices_of(hidden);
}

}  // namespace KVPOLICY_NAMESPACE::detail
