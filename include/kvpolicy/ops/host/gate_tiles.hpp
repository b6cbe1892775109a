// Products of rows and the weights of a gate: tiles of 24 rows, and blocks of 32 hidden units.
#pragma once

#include <algorithm>
#include <cstdint>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/products.hpp>
#include <kvpolicy/ops/host/kernels/transpose.hpp>
#include <kvpolicy/ops/host/rows.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// How the work of a gate is divided.
struct gate_sizes {
  static constexpr int block = 32;                ///< hidden units of a block
  static constexpr int rows_of_a_tile = 24;       ///< rows that are multiplied in one call
  static constexpr int most_tiles = 20;           ///< tiles of a task, at most
  static constexpr std::int64_t floats = 196608;  ///< working set of a task: three quarters of a MiB

  [[nodiscard]] static constexpr int padded(int units) { return (units + block - 1) / block * block; }
  /// The number of rows of a task that needs `floats_of_a_row` floats per row.
  [[nodiscard]] static constexpr int rows_of_a_task(std::int64_t floats_of_a_row) {
    std::int64_t const tiles = floats / (rows_of_a_tile * floats_of_a_row);
    return static_cast<int>(tiles < 1 ? 1 : tiles > most_tiles ? most_tiles : tiles) * rows_of_a_tile;
  }
};
static_assert(gate_sizes::rows_of_a_tile <= keys_of_a_tile, "a tile is multiplied in one call");

/// Throws if the caller has not reserved scratch on the executor that runs the gates.
inline void check_gate_scratch(char const* call, host_executor const& exec, std::size_t needed) {
  expects(exec.reserved() >= needed, call, "exec", "an executor without scratch for these weights",
          [&] { return std::string(call) + ".reserve comes first"; });
}

/// Converts a row to floats. Its elements are contiguous, or `step` bytes apart.
inline void widen_row(product_kernels const& blocks, codec element, std::byte const* from, std::int64_t step, int dims,
                      float* to) {
  if (step == bytes_of(element)) return blocks.widen(element, from, dims, to);
  load_row(element, from, step, dims, to);
}

/// One block of weights, packed for the kernels, which multiplies rows.
class gate_block {
 public:
  using sizes = gate_sizes;

  /// The floats of `packed` for weights with `columns` columns.
  [[nodiscard]] static constexpr std::size_t scratch_floats(int columns) {
    return static_cast<std::size_t>(columns) * sizes::block;
  }

  gate_block(host_executor const& exec, float* packed)
      : logits_(logits_of_isa[exec.simd_level()][sizes::block].logits()),
        few_(logits_of_isa[exec.simd_level()][sizes::block].one_by_one),
        transpose_(transpose_of_isa[exec.simd_level()].rows),
        packed_(packed) {}

  /// Packs `units` rows of weights, which are `stride` floats apart, as packed[column][unit], with zeros behind the
  /// last unit.
  void pack(float const* from, std::int64_t stride, int units, int columns) {
    columns_ = columns;
    if (units < sizes::block) std::fill_n(packed_, scratch_floats(columns), 0.0f);
    float const* row[sizes::block];
    for (int u = 0; u < units; ++u) row[u] = from + u * stride;
    transpose_(row, units, columns, packed_, sizes::block);
  }

  /// out[row][32] = rows [count][columns] times the block. There is at most a tile of rows, and they are `stride`
  /// floats apart. The bits of a row's sums do not depend on the other rows.
  void multiply(float const* rows, std::int64_t stride, int count, float* out) {
    for (int i = 0; i < 2 * keys_of_a_tile; ++i) address_[i] = rows + std::min(i, count - 1) * stride;
    auto const multiplied = count <= few_rows ? few_ : logits_;
    multiplied(address_, count, columns_, packed_, 1, out);
  }

 private:
  using product = void (*)(void const* const*, int, int, void const*, float, float*);

  product logits_;
  product few_;  ///< the product for few rows, one by one
  void (*transpose_)(float const* const*, int, int, float*, std::int64_t);
  float* packed_;
  int columns_ = 0;
  void const* address_[2 * keys_of_a_tile] = {};
};

}  // namespace KVPOLICY_NAMESPACE::detail
