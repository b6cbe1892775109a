// SPDX-License-Identifier: Apache-2.0
// Device implementation of write_gates: one block for each tile of entries of a lane.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/moves/rows.hpp>
#include <kvpolicy/ops/cuda/perceptron/gates.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/ops/write_gates.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Rows of a tile, each divided by its root mean square.
struct normed_rows {
  codec element;
  std::int64_t step;
  float const* norm;
  std::byte const* const* from;  ///< the address of each row, in shared memory
  float const* scale;            ///< the factor of each row, in shared memory

  [[nodiscard]] KVPOLICY_HD float operator()(int r, int d) const {
    return any_element_at(element, from[r] + d * step) * scale[r] * norm[d];
  }
};

/// The rows before RoPE, followed by those after it.
struct both_rows {
  normed_rows pre;
  normed_rows post;
  int dims;

  [[nodiscard]] KVPOLICY_HD float operator()(int r, int c) const { return c < dims ? pre(r, c) : post(r, c - dims); }
};

struct write_gate_net {
  kvpolicy::lanes lanes;
  row_view pre;
  row_view post;
  write_gate_weights weights;
  by_lane<float> out;

  [[nodiscard]] static std::size_t bytes(int rows) {
    return 2 * (shared_arena::bytes_of_piece<std::byte const*>(rows) + shared_arena::bytes_of_piece<float>(rows));
  }
  [[nodiscard]] KVPOLICY_HD int columns() const { return 2 * weights.dims; }
  [[nodiscard]] KVPOLICY_HD int rows_of(int group) const { return lanes.committed(lanes.at(group)); }

  template <class Block>
  [[nodiscard]] KVPOLICY_HD gate_tile<both_rows, gelu> bind(Block& block, shared_arena& arena, row_tile const& tile,
                                                            int stride) const {
    lane const one = lanes.at(tile.group);
    std::int64_t const index = index_of(one);
    std::int64_t const norm = std::int64_t{one.layer} * weights.dims;
    normed_rows const before = take(block, arena, pre, tile, stride, weights.pre_norm + norm);
    normed_rows const after = take(block, arena, post, tile, stride, weights.post_norm + norm);
    return {{before, after, weights.dims},
            {weights.fc1 + index * weights.hidden * columns(), columns()},
            weights.fc1_bias + index * weights.hidden,
            weights.fc2 + index * weights.hidden,
            weights.hidden};
  }

  KVPOLICY_HD void store(int group, int entry, int, float z) const {
    lane const one = lanes.at(group);
    out.row(one)[entry] = sigmoid(z + weights.fc2_bias[index_of(one)]);
  }

 private:
  /// The index of the lane among all lanes of the model.
  [[nodiscard]] KVPOLICY_HD std::int64_t index_of(lane one) const {
    return std::int64_t{one.layer} * weights.heads + one.head;
  }

  /// Finds the addresses of rows and the factors of their elements, one warp for each row.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD normed_rows take(Block& block, shared_arena& arena, row_view const& rows,
                                             row_tile const& tile, int stride, float const* norm) const {
    auto* const from = arena.take<std::byte const*>(stride);
    auto* const scale = arena.take<float>(stride);
    lane const one = lanes.at(tile.group);
    int const warps = block.threads() / warp_size;
    for (int r = warp_id(block); r < tile.rows; r += warps) {
      std::byte const* const row = rows.row(one, tile.begin + r);
      float const by = scale_of(block, rows.rows, row, rows.scale(one, tile.begin + r));
      if (lane_id(block) == 0) from[r] = row, scale[r] = by;
    }
    return {rows.rows.element, rows.rows.channel_stride, norm, from, scale};
  }

  template <class Block>
  [[nodiscard]] KVPOLICY_HD static float scale_of(Block& block, plane const& rows, std::byte const* row, float scale) {
    float sum = 0;
    for (int d = lane_id(block); d < rows.channels; d += warp_size) {
      float const value = any_element_at(rows.element, row + d * rows.channel_stride) * scale;
      sum += value * value;
    }
    sum = block.reduce_warp(sum, plus_op{});
    return scale / ::sqrtf(sum / static_cast<float>(rows.channels) + 1e-6f);
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::write_gates_t, Backend> {
  /// Bytes of the executor's scratch.
  static std::size_t scratch(write_gate_weights const& weights) {
    return static_cast<std::size_t>(detail::gate_parts(weights)) * sizeof(float);
  }

  template <class Executor>
  static void run(Executor& exec, lanes const& batch, row_view const& pre, row_view const& post,
                  write_gate_weights const& weights, by_lane<float> const& out) {
    detail::check_gate_scratch("write_gates", exec, scratch(weights));
    detail::check_aligned("write_gates", "pre", pre.rows);
    detail::check_aligned("write_gates", "post", post.rows);
    detail::perceptron_work const work{.groups = batch.size(), .bound = batch.capacity, .hidden = weights.hidden};
    detail::launch_perceptron(exec, detail::write_gate_net{batch, pre, post, weights, out}, work,
                              reinterpret_cast<float*>(exec.scratch()), detail::gate_parts(weights));
  }
};

}  // namespace KVPOLICY_NAMESPACE
