// SPDX-License-Identifier: Apache-2.0
// Device implementation of retention_gates: one block for each tile of rows of a layer, with the outputs of all heads.
#pragma once

#include <kvpolicy/ops/cuda/moves/rows.hpp>
#include <kvpolicy/ops/cuda/perceptron/gates.hpp>
#include <kvpolicy/ops/retention_gates.hpp>
#include <kvpolicy/ops/scratch.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Rows of contiguous elements.
struct element_rows {
  codec element;
  std::byte const* from;
  std::int64_t stride;
  [[nodiscard]] KVPOLICY_HD float operator()(int r, int c) const {
    return element_at(element, from + r * stride + std::int64_t{c} * bytes_of(element));
  }
};

struct retention_gate_net {
  kvpolicy::lanes lanes;
  hidden_rows hidden;
  retention_gate_weights weights;
  by_lane<float> out;

  [[nodiscard]] static std::size_t bytes(int) { return 0; }
  [[nodiscard]] KVPOLICY_HD int columns() const { return weights.width; }
  /// As many rows as the longest lane of the layer has entries.
  [[nodiscard]] KVPOLICY_HD int rows_of(int group) const {
    int most = 0;
    for (lane one = lanes.at(group * lanes.heads); one.head < lanes.heads; ++one.head) {
      int const count = lanes.committed(one);
      most = count > most ? count : most;
    }
    return most;
  }

  template <class Block>
  [[nodiscard]] KVPOLICY_HD gate_tile<element_rows, silu> bind(Block&, shared_arena&, row_tile const& tile, int) const {
    lane const one = lanes.at(tile.group * lanes.heads);
    std::int64_t const units = std::int64_t{one.layer} * weights.hidden;
    return {{hidden.element, hidden.at(one.sequence, one.layer, tile.begin), hidden.row},
            {weights.fc1 + units * weights.width, weights.width},
            weights.fc1_bias + units,
            weights.fc2 + units * weights.heads,
            weights.hidden};
  }

  KVPOLICY_HD void store(int group, int entry, int output, float z) const {
    lane const one = lanes.at(group * lanes.heads + output);
    if (entry >= lanes.committed(one)) return;
    out.row(one)[entry] = log_sigmoid(z + weights.fc2_bias[std::int64_t{one.layer} * weights.heads + output]);
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::retention_gates_t, Backend> {
  /// Bytes of the executor's scratch.
  static std::size_t scratch(retention_gate_weights const& weights) {
    return static_cast<std::size_t>(detail::gate_parts(weights)) * sizeof(float);
  }

  template <class Executor>
  static void run(Executor& exec, lanes const& batch, hidden_rows const& hidden, retention_gate_weights const& weights,
                  by_lane<float> const& out) {
    detail::check_gate_scratch("retention_gates", exec, scratch(weights));
    auto const strides = static_cast<std::uintptr_t>(hidden.sequence | hidden.layer | hidden.row);
    detail::expect_aligned("retention_gates", "hidden",
                           detail::alignment_of_bits(reinterpret_cast<std::uintptr_t>(hidden.base) | strides),
                           hidden.element);
    detail::perceptron_work const work{.groups = batch.sequences * batch.layers(),
                                       .bound = batch.capacity,
                                       .hidden = weights.hidden,
                                       .outputs = weights.heads};
    detail::launch_perceptron(exec, detail::retention_gate_net{batch, hidden, weights, out}, work,
                              reinterpret_cast<float*>(exec.scratch()), detail::gate_parts(weights));
  }
};

}  // namespace KVPOLICY_NAMESPACE
