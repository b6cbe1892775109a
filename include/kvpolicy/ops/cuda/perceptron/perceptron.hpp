// SPDX-License-Identifier: Apache-2.0
// Runs perceptrons with one hidden layer on a device: tiles of rows, slices of hidden units.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/perceptron/perceptron_tile.hpp>
#include <kvpolicy/ops/cuda/run/page_launches.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// x (1 + erf(x / sqrt 2)) / 2.
[[nodiscard]] KVPOLICY_HD inline float gelu(float x) { return 0.5f * x * (1.0f + ::erff(x * 0.70710678f)); }

[[nodiscard]] KVPOLICY_HD inline float sigmoid(float z) {
  float const tail = ::expf(z < 0 ? z : -z);
  return (z < 0 ? tail : 1.0f) / (1.0f + tail);
}

[[nodiscard]] KVPOLICY_HD inline float silu(float x) {
  float const tail = ::expf(x < 0 ? x : -x);
  return x * (x < 0 ? tail : 1.0f) / (1.0f + tail);
}

/// log(sigmoid(z)), exact to float32 also where the sigmoid rounds to 1.
[[nodiscard]] KVPOLICY_HD inline float log_sigmoid(float z) {
  return (z < 0 ? z : 0.0f) - ::log1pf(::expf(z < 0 ? z : -z));
}

/// A tile of rows: entries [begin, begin + rows) of a group, which is the rows that share their weights.
struct row_tile {
  int group = 0;
  int begin = 0;
  int rows = 0;
};

/// How the work of a perceptron is divided: a block handles a tile of rows, with one slice of the hidden units or all.
struct perceptron_work {
  int groups = 0;
  int bound = 0;  ///< the most rows of a group
  int hidden = 0;
  int outputs = 1;
  int threads = warp_size;
  bool split = false;  ///< true: each slice has a block of its own

  [[nodiscard]] KVPOLICY_HD constexpr int rows() const { return tile_sizes::rows(threads); }
  [[nodiscard]] KVPOLICY_HD constexpr int tiles() const { return groups * tiles_of_a_group(); }
  [[nodiscard]] KVPOLICY_HD constexpr int slices() const { return slices_of(hidden); }
  [[nodiscard]] static KVPOLICY_HD constexpr int slices_of(int hidden) {
    return (hidden + tile_sizes::units - 1) / tile_sizes::units;
  }
  /// How many partial sums there are if slices have blocks of their own.
  [[nodiscard]] constexpr std::int64_t parts() const { return std::int64_t{tiles()} * rows() * outputs * slices(); }
  /// The tile of this number.
  template <class Net>
  [[nodiscard]] KVPOLICY_HD row_tile of(int tile, Net const& net) const {
    int const group = tile / tiles_of_a_group();
    int const begin = tile % tiles_of_a_group() * rows();
    return {group, begin, min_op{}(net.rows_of(group) - begin, rows())};
  }

 private:
  [[nodiscard]] KVPOLICY_HD constexpr int tiles_of_a_group() const { return (bound + rows() - 1) / rows(); }
};

/// Runs a net. The net describes its rows and weights:
///
/// - `rows_of(group)` is the number of rows, `columns()` the channels of a row.
/// - `bind(block, arena, tile, stride)` returns a task for a tile. Its `row()(r, c)` is a channel of a row, its
///   `weight_from(unit)(u, c)` a weight. `has_work` is false if the tile needs no work. `prepare(block, unit,
///   units)` is called before each slice. `activation(r, unit, sum)` is the hidden unit's value, and
///   `output_weight(output, unit)` its weight for an output.
/// - `store(group, entry, output, z)` stores an output; it checks whether there is such an entry.
///
/// An output is the sum over its slices in order, whichever blocks compute them.
template <class Net>
struct perceptron_kernel {
  Net net;
  perceptron_work work;
  float* parts;  ///< [tile][row][output][slice] where work is split

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const slices = work.split ? work.slices() : 1;
    int const tile = block.index() / slices;
    row_tile const rows = work.of(tile, net);
    if (rows.rows <= 0) return;
    shared_arena arena(block);
    product_tile<Block> const product(block, arena);
    auto* const total = arena.take<float>(work.rows() * work.outputs);
    auto task = net.bind(block, arena, rows, work.rows());
    if (!task.has_work) return;
    int const first = work.split ? block.index() % slices : 0;
    int const last = work.split ? first + 1 : work.slices();
    for (int slice = first; slice < last; ++slice) {
      float* const to = work.split ? parts + std::int64_t{tile} * work.rows() * work.outputs * slices + slice : total;
      add_slice(block, product, task, rows.rows, slice, slice == first, to);
    }
    if (!work.split && product.leads()) finish(product, rows, total);
  }

 private:
  template <class Block, class Task>
  KVPOLICY_HD void add_slice(Block& block, product_tile<Block> const& product, Task& task, int rows, int slice,
                             bool first, float* to) const {
    int const unit = slice * tile_sizes::units;
    int const units = work.hidden - unit < tile_sizes::units ? work.hidden - unit : tile_sizes::units;
    task.prepare(block, unit, units);
    tile_sums sums;
    product.multiply(rows, units, net.columns(), task.row(), task.weight_from(unit), sums);
    int const mine = units - product.first_unit();
    for (int i = 0; i < tile_sizes::each; ++i) {
      int const r = product.first_row() + i;
      for (int j = 0; j < tile_sizes::each; ++j) {
        bool const there = r < rows && j < mine;
        sums.of[i][j] = there ? task.activation(r, unit + product.first_unit() + j, sums.of[i][j]) : 0.0f;
      }
    }
    for (int output = 0; output < work.outputs; ++output) {
      for (int i = 0; i < tile_sizes::each; ++i) {
        float part = 0;
        for (int j = 0; j < tile_sizes::each; ++j) {
          if (j < mine) part += sums.of[i][j] * task.output_weight(output, unit + product.first_unit() + j);
        }
        part = product.sum_across(part);
        if (!product.leads()) continue;
        int const at = (product.first_row() + i) * work.outputs + output;
        float& sum = work.split ? to[std::int64_t{at} * work.slices()] : to[at];
        sum = first ? part : sum + part;
      }
    }
  }

  template <class Block>
  KVPOLICY_HD void finish(product_tile<Block> const& product, row_tile const& rows, float const* total) const {
    for (int i = 0; i < tile_sizes::each; ++i) {
      int const r = product.first_row() + i;
      if (r >= rows.rows) return;
      for (int output = 0; output < work.outputs; ++output) {
        net.store(rows.group, rows.begin + r, output, total[r * work.outputs + output]);
      }
    }
  }
};

/// Adds up the slices of every output.
template <class Net>
struct add_slices {
  Net net;
  perceptron_work work;
  float const* parts;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    int const output = static_cast<int>(i % work.outputs);
    int const r = static_cast<int>(i / work.outputs % work.rows());
    int const tile = static_cast<int>(i / work.outputs / work.rows());
    row_tile const rows = work.of(tile, net);
    if (r >= rows.rows) return;
    float const* const part = parts + i * work.slices();
    float total = part[0];
    for (int slice = 1; slice < work.slices(); ++slice) total += part[slice];
    net.store(rows.group, rows.begin + r, output, total);
  }
};

/// Runs a net on `groups` groups of up to `bound` rows. Each slice gets a block of its own where tiles alone would
/// leave the device idle, if `capacity`, the number of floats in `parts`, allows it. Nothing happens once a fault is
/// recorded.
template <class Executor, class Net>
void launch_perceptron(Executor& exec, Net const& net, perceptron_work work, float* parts, std::int64_t capacity) {
  if (work.groups <= 0 || work.bound <= 0) return;
  auto const bytes = [&](int threads) {
    int const rows = tile_sizes::rows(threads);
    return tile_sizes::bytes(threads) + shared_arena::bytes_of_piece<float>(rows * work.outputs) + Net::bytes(rows);
  };
  auto const threads = tile_threads(exec, bytes);
  work.threads = threads;
  work.split = work.slices() > 1 && work.tiles() < 4 * exec.config().processors && work.parts() <= capacity;
  int const blocks = work.tiles() * (work.split ? work.slices() : 1);
  launch_unless_fault(exec, launch_shape{blocks, threads, bytes(threads)}, perceptron_kernel<Net>{net, work, parts});
  if (!work.split) return;
  std::int64_t const outputs = std::int64_t{work.tiles()} * work.rows() * work.outputs;
  launch_each_unless_fault(exec, outputs, add_slices<Net>{net, work, parts});
}

}  // namespace KVPOLICY_NAMESPACE::detail
