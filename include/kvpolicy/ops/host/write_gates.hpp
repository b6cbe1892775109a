// SPDX-License-Identifier: Apache-2.0
// Host implementation of write_gates, for a few hundred entries of a lane at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/gate_tiles.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/kernels/gates.hpp>
#include <kvpolicy/ops/host/kernels/residual.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/ops/write_gates.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Computes the write gate of some entries of a lane.
class write_gate_task {
 public:
  using sizes = gate_sizes;

  [[nodiscard]] static constexpr int rows(write_gate_weights const& weights) {
    return sizes::rows_of_a_task(2 * std::int64_t{weights.dims});
  }
  [[nodiscard]] static constexpr std::size_t scratch(write_gate_weights const& weights) {
    auto const entries = static_cast<std::size_t>(rows(weights));
    return scratch_of<float>(entries * static_cast<std::size_t>(2 * weights.dims)) +
           scratch_of<float>(gate_block::scratch_floats(2 * weights.dims)) +
           scratch_of<float>(sizes::rows_of_a_tile * sizes::block) + scratch_of<float>(entries);
  }

  write_gate_task(host_executor const& exec, write_gate_weights const& weights, lane this_lane, scratch_arena arena)
      : simd_level_(exec.simd_level()),
        gates_(gates_of_isa[exec.simd_level()]),
        add_gelu_units_(residual_of_isa[exec.simd_level()].add_gelu_units),
        weights_(weights),
        lanes_(this_lane),
        index_(std::int64_t{this_lane.layer} * weights.heads + this_lane.head),
        columns_(2 * weights.dims),
        x_(arena.take<float>(static_cast<std::size_t>(rows(weights)) * static_cast<std::size_t>(columns_))),
        block_(exec, arena.take<float>(gate_block::scratch_floats(columns_))),
        tile_(arena.take<float>(sizes::rows_of_a_tile * sizes::block)),
        sums_(arena.take<float>(static_cast<std::size_t>(rows(weights)))) {}

  /// Computes entries [begin, end), at most `rows`; `out` is the lane's row.
  void run(row_view const& pre, row_view const& post, int begin, int end, float* out) {
    int const count = end - begin;
    for (int i = 0; i < count; ++i) {
      float* const row = x_ + std::ptrdiff_t{i} * columns_;
      load(pre, begin + i, weights_.pre_norm, row);
      load(post, begin + i, weights_.post_norm, row + weights_.dims);
    }
    std::fill_n(sums_, count, 0.0f);
    for (int unit = 0; unit < weights_.hidden; unit += sizes::block) add_units(unit, count);
    float const bias = weights_.fc2_bias[index_];
    for (int i = 0; i < count; ++i) out[begin + i] = sigmoid(sums_[i] + bias);
  }

 private:
  static constexpr float zeros[sizes::rows_of_a_tile * sizes::block] = {};

  static float sigmoid(float z) {
    float const tail = std::exp(z < 0 ? z : -z);
    return (z < 0 ? tail : 1.0f) / (1.0f + tail);
  }

  void load(row_view const& from, int ordinal, float const* norm, float* to) const {
    plane const& rows = from.rows;
    convert_row(simd_level_, rows.element, from.row(lanes_, ordinal), rows.channel_stride, rows.channels, to);
    if (rows.scales.data != nullptr) scale_row(from.scale(lanes_, ordinal), rows.channels, to);
    gates_.rms_normalise(to, rows.channels, norm + std::ptrdiff_t{lanes_.layer} * weights_.dims);
  }

  /// Adds the contribution of the hidden units from `unit` on to every entry's sum.
  void add_units(int unit, int count) {
    int const units = std::min(sizes::block, weights_.hidden - unit);
    std::int64_t const first = index_ * weights_.hidden + unit;
    float bias[sizes::block] = {};
    float last[sizes::block] = {};
    std::copy_n(weights_.fc1_bias + first, units, bias);
    std::copy_n(weights_.fc2 + first, units, last);
    if (count == 1 && units == sizes::block) {
      multiply_one(weights_.fc1 + first * columns_);
      return add_gelu_units_({tile_, bias, zeros, last, zeros, 1}, sums_);
    }
    block_.pack(weights_.fc1 + first * columns_, columns_, units, columns_);
    for (int i = 0; i < count; i += sizes::rows_of_a_tile) {
      int const rows = std::min(sizes::rows_of_a_tile, count - i);
      block_.multiply(x_ + std::ptrdiff_t{i} * columns_, columns_, rows, tile_);
      add_gelu_units_({tile_, bias, zeros, last, zeros, rows}, sums_ + i);
    }
  }

  /// Multiplies one row and a block of weights, which is read where it is.
  void multiply_one(float const* weights) {
    for (int u = 0; u < sizes::block; u += unit_weights::units) {
      float const* const next = weights + std::ptrdiff_t{unit_weights::units} * columns_;
      gates_.sum_units({weights, columns_, columns_, next}, x_, tile_ + u);
      weights = next;
    }
  }

  isa simd_level_;
  gates_kernels const& gates_;
  void (*add_gelu_units_)(hidden_tile const& tile, float* out);
  write_gate_weights const& weights_;
  lane lanes_;
  std::int64_t index_;  ///< index of the lane in the model's lanes
  int columns_;
  float* x_;
  gate_block block_;
  float* tile_;
  float* sums_;
};

}  // namespace detail

template <>
struct implementation<ops::write_gates_t, host> {
  /// Bytes of scratch per worker.
  static std::size_t scratch(write_gate_weights const& weights) { return detail::write_gate_task::scratch(weights); }

  static void run(host_executor& exec, lanes const& batch, row_view const& pre, row_view const& post,
                  write_gate_weights const& weights, by_lane<float> const& out) {
    detail::check_gate_scratch("write_gates", exec, scratch(weights));
    int const rows = detail::write_gate_task::rows(weights);
    int const tasks = (batch.capacity + rows - 1) / rows;
    exec.for_each(batch.size() * tasks, [&](int i, int worker) {
      lane const one = batch.at(i / tasks);
      int const begin = i % tasks * rows;
      int const end = std::min(begin + rows, batch.committed(one));
      if (begin >= end) return;
      detail::write_gate_task task(exec, weights, one, detail::scratch_arena(exec.scratch(worker)));
      task.run(pre, post, begin, end, out.row(one));
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
