// SPDX-License-Identifier: Apache-2.0
// A tile of a matrix product: rows times rows of weights, through shared memory.
#pragma once

#include <kvpolicy/ops/cuda/run/block.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The sizes of a tile: a block handles 64 rows of weights and as many other rows as its threads allow. Each thread
/// handles four of each.
struct tile_sizes {
  static constexpr int units = 64;               ///< rows of weights of a tile
  static constexpr int channels = 32;            ///< channels between two barriers
  static constexpr int each = 4;                 ///< rows, and units, of each thread
  static constexpr int across = units / each;    ///< threads that share a row
  static constexpr int unit_stride = units + 4;  ///< floats between two channels; a multiple of 16 bytes
  static constexpr int most_threads = 256;

  [[nodiscard]] KVPOLICY_HD static constexpr int rows(int threads) { return threads / across * each; }
  [[nodiscard]] KVPOLICY_HD static constexpr int row_stride(int threads) { return rows(threads) + 4; }
  /// Bytes of shared memory of a tile.
  [[nodiscard]] static constexpr std::size_t bytes(int threads) {
    return shared_arena::bytes_of_piece<float>(channels * row_stride(threads)) +
           shared_arena::bytes_of_piece<float>(channels * unit_stride);
  }
};

/// The sums of a thread: its rows times its units.
struct tile_sums {
  float of[tile_sizes::each][tile_sizes::each] = {};
};

/// Rows of floats, `stride` floats apart.
struct float_rows {
  float const* from;
  int stride;
  [[nodiscard]] KVPOLICY_HD float operator()(int row, int c) const { return from[std::int64_t{row} * stride + c]; }
};

/// The most threads for which `bytes(threads)` of shared memory are available, or 32 if none are. Only the most are
/// known when kernels are compiled.
template <class Executor, class Bytes>
[[nodiscard]] auto tile_threads(Executor& exec, Bytes const& bytes) {
  auto const most = at_most<tile_sizes::most_threads>(exec.threads().entry);
  int threads = most;
  while (threads > warp_size && bytes(threads) > static_cast<std::size_t>(exec.config().shared_bytes)) {
    threads -= warp_size;
  }
  return fewer(most, threads);
}

/// The larger one of two numbers; a NaN is ignored.
struct larger_number {
  [[nodiscard]] KVPOLICY_HD float operator()(float a, float b) const { return a >= b || b != b ? a : b; }
};

/// Multiplies a tile. One thread computes a row's sum with a unit, channel by channel, so its bits depend on neither
/// the other rows nor the number of threads.
template <class Block>
class product_tile {
 public:
  using sizes = tile_sizes;

  KVPOLICY_HD product_tile(Block& block, shared_arena& arena)
      : block_(block),
        row_stride_(sizes::row_stride(block.threads())),
        rows_(arena.take<float>(sizes::channels * row_stride_)),
        weights_(arena.take<float>(sizes::channels * sizes::unit_stride)) {}

  /// The number of rows of the tile. Below: the first row and the first unit of this thread.
  [[nodiscard]] KVPOLICY_HD int rows() const { return sizes::rows(block_.threads()); }
  [[nodiscard]] KVPOLICY_HD int first_row() const { return block_.thread() / sizes::across * sizes::each; }
  [[nodiscard]] KVPOLICY_HD int first_unit() const { return block_.thread() % sizes::across * sizes::each; }
  /// True in the one thread that writes a row's result.
  [[nodiscard]] KVPOLICY_HD bool leads() const { return block_.thread() % sizes::across == 0; }

  /// Adds to to[r][u] the sum over channels of row(r, c) weight(u, c). Collective. It starts with a barrier, so earlier
  /// writes to shared memory are visible; when it returns, the memory that `row` and `weight` read may be written.
  template <class Row, class Weight>
  KVPOLICY_HD void multiply(int rows, int units, int channels, Row const& row, Weight const& weight,
                            tile_sums& to) const {
    for (int first = 0; first < channels; first += sizes::channels) {
      int const panel = channels - first < sizes::channels ? channels - first : sizes::channels;
      block_.sync();
      stage(row, rows, first, panel, row_stride_, rows_);
      stage(weight, units, first, panel, sizes::unit_stride, weights_);
      block_.sync();
      if (first_row() < rows && first_unit() < units) add_panel(panel, to);
    }
  }

  /// The sum of a value over the threads that share a row. All of them get it. Collective for a warp.
  [[nodiscard]] KVPOLICY_HD float sum_across(float value) const {
    return block_.template reduce_warp<sizes::across>(value, plus_op{});
  }
  /// The maximum over the threads that share a row; a NaN is ignored. Collective for a warp.
  [[nodiscard]] KVPOLICY_HD float max_across(float value) const {
    return block_.template reduce_warp<sizes::across>(value, larger_number{});
  }

 private:
  struct alignas(16) vector {
    float of[sizes::each];
  };

  /// Copies a panel to shared memory, transposed. Neighbouring threads read eight channels of four rows, which are
  /// whole sectors, and no two threads of a warp write to the same bank.
  template <class From>
  KVPOLICY_HD void stage(From const& from, int count, int first, int panel, int stride, float* to) const {
    constexpr int panels = sizes::channels / 8;
    int const all = (count + 3) / 4 * 4 * sizes::channels;
    for (int i = block_.thread(); i < all; i += block_.threads()) {
      int const c = i % 8 + i / 32 % panels * 8;
      int const r = i / 8 % 4 + i / (4 * sizes::channels) * 4;
      to[c * stride + r] = r < count && c < panel ? from(r, first + c) : 0.0f;
    }
  }

  KVPOLICY_HD void add_panel(int panel, tile_sums& to) const {
    float const* row = rows_ + first_row();
    float const* weight = weights_ + first_unit();
    for (int c = 0; c < panel; ++c, row += row_stride_, weight += sizes::unit_stride) {
      vector const a = *reinterpret_cast<vector const*>(row);
      vector const b = *reinterpret_cast<vector const*>(weight);
      for (int i = 0; i < sizes::each; ++i) {
        for (int j = 0; j < sizes::each; ++j) to.of[i][j] += a.of[i] * b.of[j];
      }
    }
  }

  Block& block_;
  int row_stride_;
  float* rows_;     ///< [channels][row_stride]
  float* weights_;  ///< [channels][unit_stride]
};

}  // namespace KVPOLICY_NAMESPACE::detail
