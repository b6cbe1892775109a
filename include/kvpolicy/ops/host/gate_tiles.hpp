// SPDX-License-Identifier: Apache-2.0
// Products of rows and the weights of a gate: tiles of 24 rows, and blocks of 32 hidden units.
#pragma once

#include <algorithm>
#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/transpose.hpp>
#include <kvpolicy/ops/host/row_products.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// How the work of a gate is divided.
struct gate_sizes {
  static constexpr int block = most_rows;                ///< hidden units of a block: 32
  static constexpr int rows_of_a_tile = keys_of_a_tile;  ///< rows that are multiplied in one call: 24
  static constexpr int most_tiles = 20;                  ///< tiles of a task, at most
  static constexpr std::int64_t floats = 196608;         ///< working set of a task: three quarters of a MiB

  [[nodiscard]] static constexpr int padded(int units) { return (units + block - 1) / block * block; }
  /// The number of rows of a task that needs `floats_of_a_row` floats per row.
  [[nodiscard]] static constexpr int rows_of_a_task(std::int64_t floats_of_a_row) {
    std::int64_t const tiles = floats / (rows_of_a_tile * floats_of_a_row);
    return static_cast<int>(tiles < 1 ? 1 : tiles > most_tiles ? most_tiles : tiles) * rows_of_a_tile;
  }
};
/// One block of weights, packed for the kernels, which multiplies rows.
class gate_block {
 public:
  using sizes = gate_sizes;

  /// The floats of `packed` for weights with `columns` columns.
  [[nodiscard]] static constexpr std::size_t scratch_floats(int columns) {
    return static_cast<std::size_t>(columns) * sizes::block;
  }

  gate_block(host_executor const& exec, float* packed)
      : products_(exec.simd_level()), transpose_(transpose_of_isa[exec.simd_level()].rows), packed_(packed) {}

  /// Packs `units` rows of weights, which are `stride` floats apart, as packed[column][unit], with zeros after the
  /// last unit.
  void pack(float const* from, std::int64_t stride, int units, int columns) {
    columns_ = columns;
    if (units < sizes::block) std::fill_n(packed_, scratch_floats(columns), 0.0f);
    float const* row[sizes::block];
    for (int u = 0; u < units; ++u) row[u] = from + u * stride;
    transpose_(row, units, columns, packed_, sizes::block);
  }

  /// out[row][32] = rows [count][columns] times the block. Rows are `stride` floats apart.
  void multiply(float const* rows, std::int64_t stride, int count, float* out) const {
    products_.multiply(rows, stride, count, columns_, packed_, 1, out);
  }

 private:
  row_products products_;
  void (*transpose_)(float const* const*, int, int, float*, std::int64_t);
  float* packed_;
  int columns_ = 0;
};

}  // namespace KVPOLICY_NAMESPACE::detail
