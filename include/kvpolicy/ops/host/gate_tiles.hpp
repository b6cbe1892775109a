// Products of rows and the weights of a gate: tiles of 24 rows, and blocks of 32 hidden units.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/gate_kernels.hpp>
#include <kvpolicy/ops/host/kernels/products.hpp>
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

  gate_block(isa simd_level, float* packed)
      : logits_(products_for<sizes::block>(simd_level).logits()),
        few_(products_for<sizes::block>(simd_level).one_by_one),
        packed_(packed) {}

  /// Packs `units` rows of weights, which are `stride` floats apart, as packed[column][unit], with zeros behind the
  /// last unit.
  void pack(float const* from, std::int64_t stride, int units, int columns) {
    columns_ = columns;
    if (units < sizes::block) std::fill_n(packed_, scratch_floats(columns), 0.0f);
    int u = 0;
    for (; u + 4 <= units; u += 4) {
      turn_four(from + u * stride, stride, columns, std::min(4, units - u - 4), packed_ + u);
    }
    for (; u < units; ++u) turn_one(from + u * stride, 0, columns, packed_ + u);
  }

  /// out[row][32] = rows [count][columns] times the block. There is at most a tile of rows, and they are `stride`
  /// floats apart. The bits of a row's sums do not depend on the other rows.
  void multiply(float const* rows, std::int64_t stride, int count, float* out) {
    for (int i = 0; i < 2 * keys_of_a_tile; ++i) address_[i] = rows + std::min(i, count - 1) * stride;
    auto const multiplied = count <= few_rows ? few_ : logits_;
    multiplied(address_, count, columns_, packed_, 1, out);
  }

 private:
  static void turn_one(float const* from, int first, int columns, float* to) {
    for (int c = first; c < columns; ++c) to[std::ptrdiff_t{c} * sizes::block] = from[c];
  }

  /// Interleaves four rows, and prefetches `behind` following rows.
  static void turn_four(float const* from, std::int64_t stride, int columns, int behind, float* to) {
    int c = 0;
#if defined(__x86_64__)
    for (; c + 4 <= columns; c += 4) {
      if (c % floats_of_a_line == 0) {
        for (int row = 4; row < 4 + behind; ++row) __builtin_prefetch(from + row * stride + c);
      }
      __m128 a = _mm_loadu_ps(from + c);
      __m128 b = _mm_loadu_ps(from + stride + c);
      __m128 d = _mm_loadu_ps(from + 2 * stride + c);
      __m128 e = _mm_loadu_ps(from + 3 * stride + c);
      _MM_TRANSPOSE4_PS(a, b, d, e);
      float* const at = to + std::ptrdiff_t{c} * sizes::block;
      _mm_storeu_ps(at, a);
      _mm_storeu_ps(at + sizes::block, b);
      _mm_storeu_ps(at + 2 * sizes::block, d);
      _mm_storeu_ps(at + 3 * sizes::block, e);
    }
#endif
    static_cast<void>(behind);
    for (int row = 0; row < 4; ++row) turn_one(from + row * stride, c, columns, to + row);
  }

  using product = void (*)(void const* const*, int, int, void const*, float, float*);

  product logits_;
  product few_;  ///< the product for few rows, one by one
  float* packed_;
  int columns_ = 0;
  void const* address_[2 * keys_of_a_tile] = {};
};

}  // namespace KVPOLICY_NAMESPACE::detail
