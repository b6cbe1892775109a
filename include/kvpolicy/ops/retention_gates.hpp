// SPDX-License-Identifier: Apache-2.0
// Verb: computes how fast each new entry is forgotten, with TRIM-KV's gate.
#pragma once

#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// TRIM-KV's retention gate (arXiv:2512.03324, section 4): one perceptron per layer, with one output per KV head. These
/// are views of the float32 weights of a whole model in the executor's memory, row-major.
///
///     log beta = logsigmoid(fc2 silu(fc1 x + b1) + b)      x: the hidden row after the layer's input norm
struct retention_gate_weights {
  int layers = 0;                   ///< L
  int heads = 0;                    ///< Hkv
  int width = 0;                    ///< d
  int hidden = 0;                   ///< E
  float const* fc1 = nullptr;       ///< [L][E][d]
  float const* fc1_bias = nullptr;  ///< [L][E]
  float const* fc2 = nullptr;       ///< [L][Hkv][E]
  float const* fc2_bias = nullptr;  ///< [L][Hkv]

  /// The number of parameters of one layer: 1,315,336 for 8 heads, d = 2,560 and 512 hidden units.
  [[nodiscard]] static constexpr std::int64_t parameters(int heads, int width, int hidden) {
    return (std::int64_t{width} + 1) * hidden + (std::int64_t{hidden} + 1) * heads;
  }
  [[nodiscard]] bool there() const { return fc1 != nullptr; }

  void check(char const* call) const {
    expects(fc1 != nullptr && fc1_bias != nullptr && fc2 != nullptr && fc2_bias != nullptr, call, "retention gate",
            "null", "a gate has four tensors");
    expects(layers >= 1, call, "retention gate.layers", layers, "a model has at least one layer");
    expects(heads >= 1, call, "retention gate.heads", heads, "a model has at least one KV head");
    expects(width >= 1, call, "retention gate.width", width, "a hidden row has at least one channel");
    expects(hidden >= 1, call, "retention gate.hidden", hidden, "there is at least one hidden unit");
  }

  /// Checks the same, and that the gate fits the model.
  void check(char const* call, shape const& model) const {
    check(call);
    expects(layers == model.layers, call, "retention gate.layers", layers,
            [&] { return "the model has " + std::to_string(model.layers) + " layers"; });
    expects(heads == model.kv_heads, call, "retention gate.heads", heads,
            [&] { return "the model has " + std::to_string(model.kv_heads) + " KV heads"; });
  }

  friend bool operator==(retention_gate_weights const&, retention_gate_weights const&) = default;
};

/// The hidden rows of a forward pass, after each layer's input norm. Row i belongs to the i-th entry of the lanes that
/// a call is given. Channels are contiguous; strides are in bytes.
struct hidden_rows {
  std::byte const* base = nullptr;
  codec element = codec::f32;
  int dims = 0;
  std::int64_t sequence = 0;
  std::int64_t layer = 0;
  std::int64_t row = 0;

  [[nodiscard]] KVPOLICY_HD constexpr std::byte const* at(int in_sequence, int in_layer, int i) const {
    return base + in_sequence * sequence + in_layer * layer + i * row;
  }
};

namespace ops {

/// `retention_gates(exec, lanes, hidden, weights, out)`: computes log beta of every committed entry of `lanes`.
///
/// - in: `hidden`, the hidden rows from which these entries were computed, in float32, half or bfloat16; a lane of n
///   entries uses rows 0 .. n - 1. `lanes`: some layers of the model of the weights; only their counts are read.
/// - out: `out`, one row per lane, float32, at most 0. Nothing is written after the last entry.
/// - NaN: a row with a NaN has log beta NaN in every lane.
/// - cost: d E multiplications per row, and one read of a layer's weights per few hundred rows, which are computed by
///   one thread. Sums are in single precision, in an order that depends neither on the number of threads nor on other
///   rows. Scratch: call `reserve` once, when plans and states are made.
/// - throws: `invalid_argument` if tensors are missing, if sizes do not fit, or if nothing was reserved.
/// - source: TRIM-KV, section 4.1, and its released code. That code takes the logarithm of a bfloat16 sigmoid, which is
///   0 for logits from 7 on; this verb is exact to float32.
struct retention_gates_t : verb<retention_gates_t> {
  /// Reserves the scratch that a call with weights of these sizes needs.
  template <executor Executor>
  static void reserve(Executor& exec, retention_gate_weights const& weights) {
    weights.check("retention_gates");
    exec.reserve(implementation<retention_gates_t, typename Executor::backend>::scratch(weights));
  }

  static void check(lanes const& batch, hidden_rows const& hidden, retention_gate_weights const& weights,
                    by_lane<float> const& out) {
    weights.check("retention_gates");
    expects(batch.heads == weights.heads, "retention_gates", "lanes.heads", batch.heads,
            [&] { return "the gate has " + std::to_string(weights.heads) + " heads"; });
    expects(batch.layer_begin >= 0 && batch.layer_begin <= batch.layer_end, "retention_gates", "lanes.layer_begin",
            batch.layer_begin, "layers are a range");
    expects(batch.layer_end <= weights.layers, "retention_gates", "lanes.layer_end", batch.layer_end,
            [&] { return "the gate has " + std::to_string(weights.layers) + " layers"; });
    expects(hidden.base != nullptr, "retention_gates", "hidden", "null", "a signal is the engine's memory");
    expects(hidden.element != codec::opaque, "retention_gates", "hidden", "opaque rows",
            "only their engine can read them");
    detail::check_not_fp8("retention_gates", "hidden", hidden.element);
    expects(hidden.dims == weights.width, "retention_gates", "hidden.dims", hidden.dims,
            [&] { return "the gate is of " + std::to_string(weights.width) + " channels"; });
    expects(out.data != nullptr, "retention_gates", "out", "null", "every lane has a row to be written to");
  }
};
inline constexpr retention_gates_t retention_gates{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
