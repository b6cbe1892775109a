// SPDX-License-Identifier: Apache-2.0
// Kernels of the gates other than products of blocks, for each instruction set.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The weights of sixteen units: `columns` numbers each, which are `stride` floats apart.
struct unit_weights {
  static constexpr int units = 16;
  float const* of_unit;
  std::int64_t stride;
  int columns;
  float const* next;  ///< what is read after these weights, with the same stride
};

struct gates_kernels {
  /// row[d] *= by[d] / sqrt(mean of the row's squares + 1e-6).
  void (*rms_normalise)(float* row, int dims, float const* by) = nullptr;
  /// row[u] = silu(row[u] + bias[u]); `units` is a multiple of the block size.
  void (*activate)(float* row, int units, float const* bias) = nullptr;
  /// out[u] = sum over c of row[c] * weights of unit u [c]. The sum runs in the order of the columns, as in the
  /// products of blocks, so a row gives the same bits alone and among others. Weights are not packed.
  void (*sum_units)(unit_weights const& weights, float const* row, float* out) = nullptr;
};

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY gates
#include <kvpolicy/ops/host/simd/each_isa.hpp>
