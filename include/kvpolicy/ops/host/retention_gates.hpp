// SPDX-License-Identifier: Apache-2.0
// Host implementation of retention_gates, for a few hundred rows of a layer at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/gate_tiles.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/kernels/gates.hpp>
#include <kvpolicy/ops/host/kernels/residual.hpp>
#include <kvpolicy/ops/retention_gates.hpp>
#include <kvpolicy/ops/scratch.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Computes the retention gate of some rows of a layer. The channels of a row are processed in panels, so that a panel
/// of all rows and a block of weights stay in the cache. The sums of hidden units are complete after the last panel.
class retention_gate_task {
 public:
  using sizes = gate_sizes;
  static constexpr int channels_of_a_panel = 256;

  [[nodiscard]] static constexpr int panel(retention_gate_weights const& weights) {
    return std::min(weights.width, channels_of_a_panel);
  }
  [[nodiscard]] static constexpr int rows(retention_gate_weights const& weights) {
    return sizes::rows_of_a_task(std::int64_t{panel(weights)} + sizes::padded(weights.hidden));
  }
  [[nodiscard]] static constexpr std::size_t scratch(retention_gate_weights const& weights) {
    auto const entries = static_cast<std::size_t>(rows(weights));
    auto const padded = static_cast<std::size_t>(sizes::padded(weights.hidden));
    return scratch_of<float>(entries * static_cast<std::size_t>(panel(weights))) + scratch_of<float>(entries * padded) +
           scratch_of<float>(gate_block::scratch_floats(std::max(panel(weights), weights.hidden))) +
           scratch_of<float>(sizes::rows_of_a_tile * sizes::block) + scratch_of<float>(padded);
  }

  retention_gate_task(host_executor const& exec, retention_gate_weights const& weights, int layer, scratch_arena arena)
      : simd_level_(exec.simd_level()),
        gates_(gates_of_isa[exec.simd_level()]),
        scale_and_add_(residual_of_isa[exec.simd_level()].scale_and_add),
        weights_(weights),
        layer_(layer),
        padded_(sizes::padded(weights.hidden)),
        x_(arena.take<float>(static_cast<std::size_t>(rows(weights)) * static_cast<std::size_t>(panel(weights)))),
        units_(arena.take<float>(static_cast<std::size_t>(rows(weights)) * static_cast<std::size_t>(padded_))),
        block_(exec, arena.take<float>(gate_block::scratch_floats(std::max(panel(weights), weights.hidden)))),
        tile_(arena.take<float>(sizes::rows_of_a_tile * sizes::block)),
        bias_(arena.take<float>(static_cast<std::size_t>(padded_))) {
    std::copy_n(weights.fc1_bias + std::ptrdiff_t{layer} * weights.hidden, weights.hidden, bias_);
  }

  /// Computes rows [begin, end) of `hidden`, at most `rows`. It calls `put(head, row, log beta)` for each result.
  template <class Put>
  void run(hidden_rows const& hidden, int sequence, int begin, int end, Put const& put) {
    count_ = end - begin;
    std::fill_n(units_, std::ptrdiff_t{count_} * padded_, 0.0f);
    if (count_ == 1 && weights_.width <= rows(weights_) * panel(weights_)) {
      add_row(hidden, sequence, begin);
    } else {
      for (int first = 0; first < weights_.width; first += channels_of_a_panel) {
        int const channels = std::min(channels_of_a_panel, weights_.width - first);
        for (int i = 0; i < count_; ++i)
          load(hidden, sequence, begin + i, first, channels, x_ + std::ptrdiff_t{i} * channels);
        add_channels(first, channels, 0, x_);
      }
    }
    for (int i = 0; i < count_; ++i) gates_.activate(units_ + std::ptrdiff_t{i} * padded_, padded_, bias_);
    for (int head = 0; head < weights_.heads; head += sizes::block) finish(head, begin, put);
  }

 private:
  static float log_sigmoid(float z) { return (z < 0 ? z : 0.0f) - std::log1p(std::exp(z < 0 ? z : -z)); }

  void load(hidden_rows const& hidden, int sequence, int row, int first, int channels, float* to) const {
    int const step = bytes_of(hidden.element);
    std::byte const* const from = hidden.at(sequence, layer_, row) + std::ptrdiff_t{first} * step;
    convert_row(simd_level_, hidden.element, from, step, channels, to);
  }

  /// Adds all channels of one row: those of sixteen units at a time, whose weights are read where they are.
  void add_row(hidden_rows const& hidden, int sequence, int row) {
    load(hidden, sequence, row, 0, weights_.width, x_);
    int const whole = weights_.hidden / sizes::block * sizes::block;
    float const* weights = weights_.fc1 + std::ptrdiff_t{layer_} * weights_.hidden * weights_.width;
    for (int unit = 0; unit < whole; unit += unit_weights::units) {
      float const* const next = weights + std::ptrdiff_t{unit_weights::units} * weights_.width;
      for (int first = 0; first < weights_.width; first += channels_of_a_panel) {
        int const channels = std::min(channels_of_a_panel, weights_.width - first);
        float const* const then = first + channels < weights_.width ? weights + first + channels : next;
        gates_.sum_units({weights + first, weights_.width, channels, then}, x_ + first, tile_);
        for (int u = 0; u < unit_weights::units; ++u) units_[unit + u] += tile_[u];
      }
      weights = next;
    }
    if (whole == weights_.hidden) return;
    for (int first = 0; first < weights_.width; first += channels_of_a_panel) {
      add_channels(first, std::min(channels_of_a_panel, weights_.width - first), whole, x_ + first);
    }
  }

  /// Adds the channels from `first` on, which `x` has of every row, to the hidden units from `unit` on.
  void add_channels(int first, int channels, int unit, float const* x) {
    float const* const fc1 = weights_.fc1 + std::ptrdiff_t{layer_} * weights_.hidden * weights_.width + first;
    float ones[sizes::rows_of_a_tile];
    std::fill_n(ones, sizes::rows_of_a_tile, 1.0f);
    for (; unit < weights_.hidden; unit += sizes::block) {
      int const units = std::min(sizes::block, weights_.hidden - unit);
      block_.pack(fc1 + std::ptrdiff_t{unit} * weights_.width, weights_.width, units, channels);
      for (int i = 0; i < count_; i += sizes::rows_of_a_tile) {
        int const rows = std::min(sizes::rows_of_a_tile, count_ - i);
        block_.multiply(x + std::ptrdiff_t{i} * channels, channels, rows, tile_);
        scale_and_add_(tile_, rows, ones, units_ + std::ptrdiff_t{i} * padded_ + unit, padded_);
      }
    }
  }

  /// Computes the outputs of up to a block's heads, from `head` on.
  template <class Put>
  void finish(int head, int begin, Put const& put) {
    int const heads = std::min(sizes::block, weights_.heads - head);
    std::ptrdiff_t const first = std::ptrdiff_t{layer_} * weights_.heads + head;
    block_.pack(weights_.fc2 + first * weights_.hidden, weights_.hidden, heads, weights_.hidden);
    for (int i = 0; i < count_; i += sizes::rows_of_a_tile) {
      int const rows = std::min(sizes::rows_of_a_tile, count_ - i);
      block_.multiply(units_ + std::ptrdiff_t{i} * padded_, padded_, rows, tile_);
      for (int h = 0; h < heads; ++h) {
        for (int r = 0; r < rows; ++r) {
          put(head + h, begin + i + r, log_sigmoid(tile_[r * sizes::block + h] + weights_.fc2_bias[first + h]));
        }
      }
    }
  }

  isa simd_level_;
  gates_kernels const& gates_;
  void (*scale_and_add_)(float const* from, int count, float const* shrink, float* to, std::int64_t stride);
  retention_gate_weights const& weights_;
  int layer_;
  int padded_;    ///< hidden units, rounded up to whole blocks
  float* x_;      ///< [rows][panel]
  float* units_;  ///< [rows][padded]
  gate_block block_;
  float* tile_;
  float* bias_;  ///< [padded]; values after the last unit are multiplied by zero
  int count_ = 0;
};

}  // namespace detail

template <>
struct implementation<ops::retention_gates_t, host> {
  /// Bytes of scratch per worker.
  static std::size_t scratch(retention_gate_weights const& weights) {
    return detail::retention_gate_task::scratch(weights);
  }

  static void run(host_executor& exec, lanes const& batch, hidden_rows const& hidden,
                  retention_gate_weights const& weights, by_lane<float> const& out) {
    detail::check_gate_scratch("retention_gates", exec, scratch(weights));
    int const rows = detail::retention_gate_task::rows(weights);
    int const tasks = (batch.capacity + rows - 1) / rows;
    exec.for_each(batch.sequences * batch.layers() * tasks, [&](int i, int worker) {
      lane const first = batch.at(i / tasks * batch.heads);
      int const begin = i % tasks * rows;
      int const end = std::min(begin + rows, most_entries(batch, first));
      if (begin >= end) return;
      detail::retention_gate_task task(exec, weights, first.layer, detail::scratch_arena(exec.scratch(worker)));
      task.run(hidden, first.sequence, begin, end, [&](int head, int row, float log_beta) {
        lane const one{first.sequence, first.layer, head};
        if (row < batch.committed(one)) out.row(one)[row] = log_beta;
      });
    });
  }

 private:
  /// The largest count of the lanes of a layer.
  static int most_entries(lanes const& batch, lane one) {
    int most = 0;
    for (one.head = 0; one.head < batch.heads; ++one.head) most = std::max(most, batch.committed(one));
    return most;
  }
};

}  // namespace KVPOLICY_NAMESPACE
