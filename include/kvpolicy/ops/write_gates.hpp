// SPDX-License-Identifier: Apache-2.0
// Verb: computes the score by which new entries are admitted to the long-term cache, with WG-KV's gate.
#pragma once

#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// WG-KV's write gate (arXiv:2512.17452, section 3): one perceptron per lane. These are views of the float32 weights of
/// a whole model in the executor's memory, row-major.
///
///     x = [ RMS(k_pre) w_pre | RMS(k_post) w_post ]      RMS(u) = u / sqrt(mean u^2 + 1e-6); k: before and after RoPE
///     g = sigmoid(fc2 gelu(fc1 x + b1) + b2)             gelu in its erf form
struct write_gate_weights {
  int layers = 0;                    ///< L
  int heads = 0;                     ///< Hkv
  int dims = 0;                      ///< D
  int hidden = 0;                    ///< E
  float const* pre_norm = nullptr;   ///< w_pre [L][D], shared by the heads of a layer
  float const* post_norm = nullptr;  ///< w_post [L][D]
  float const* fc1 = nullptr;        ///< [L][Hkv][E][2 D]
  float const* fc1_bias = nullptr;   ///< [L][Hkv][E]
  float const* fc2 = nullptr;        ///< [L][Hkv][E]
  float const* fc2_bias = nullptr;   ///< [L][Hkv]

  /// The number of parameters of one layer: 1,057,032 for 8 heads, D = 128 and 512 hidden units.
  [[nodiscard]] static constexpr std::int64_t parameters(int heads, int dims, int hidden) {
    return heads * (2 * std::int64_t{dims} * hidden + 2 * std::int64_t{hidden} + 1) + 2 * std::int64_t{dims};
  }
  [[nodiscard]] bool there() const { return fc1 != nullptr; }

  void check(char const* call) const {
    expects(pre_norm != nullptr && post_norm != nullptr && fc1 != nullptr && fc1_bias != nullptr && fc2 != nullptr &&
                fc2_bias != nullptr,
            call, "write gate", "null", "a gate has six tensors");
    expects(layers >= 1, call, "write gate.layers", layers, "a model has at least one layer");
    expects(heads >= 1, call, "write gate.heads", heads, "a model has at least one KV head");
    expects(dims >= 1, call, "write gate.dims", dims, "a head has at least one channel");
    expects(hidden >= 1, call, "write gate.hidden", hidden, "there is at least one hidden unit");
  }

  /// Checks the same, and that the gate fits the model.
  void check(char const* call, shape const& model) const {
    check(call);
    expects(layers == model.layers, call, "write gate.layers", layers,
            [&] { return "the model has " + std::to_string(model.layers) + " layers"; });
    expects(heads == model.kv_heads, call, "write gate.heads", heads,
            [&] { return "the model has " + std::to_string(model.kv_heads) + " KV heads"; });
    expects(dims == model.head_dim, call, "write gate.dims", dims,
            [&] { return "the shape says " + std::to_string(model.head_dim) + " channels"; });
  }

  friend bool operator==(write_gate_weights const&, write_gate_weights const&) = default;
};

namespace ops {

/// `write_gates(exec, lanes, pre, post, weights, out)`: computes g of every committed entry of `lanes`.
///
/// - in: `pre` and `post`, the keys before and after RoPE, which are found by lane and ordinal; float32, half or
///   bfloat16. `lanes`: some layers of the model of the weights; only their counts are read.
/// - out: `out`, one row per lane, float32 in [0, 1]. Nothing is written after the last entry.
/// - NaN: a row with a NaN or an infinity has the gate NaN.
/// - cost: 2 D E multiplications per entry, and one read of a lane's weights per few hundred entries. Sums are in
///   single precision, in an order that depends neither on the number of threads nor on other entries: rows that arrive
///   one by one get the same gates as rows that arrive together. Scratch: call `reserve` once, when plans and states
///   are made.
/// - throws: `invalid_argument` if tensors are missing, if sizes do not fit, or if nothing was reserved.
/// - source: WG-KV, section 3; the weights of the norms are those of its released code.
struct write_gates_t : verb<write_gates_t> {
  /// Reserves the scratch that a call with weights of these sizes needs.
  template <executor Executor>
  static void reserve(Executor& exec, write_gate_weights const& weights) {
    weights.check("write_gates");
    exec.reserve(implementation<write_gates_t, typename Executor::backend>::scratch(weights));
  }

  static void check(lanes const& batch, row_view const& pre, row_view const& post, write_gate_weights const& weights,
                    by_lane<float> const& out) {
    weights.check("write_gates");
    expects(batch.heads == weights.heads, "write_gates", "lanes.heads", batch.heads,
            [&] { return "the gate has " + std::to_string(weights.heads) + " heads"; });
    expects(batch.layer_begin >= 0 && batch.layer_begin <= batch.layer_end, "write_gates", "lanes.layer_begin",
            batch.layer_begin, "layers are a range");
    expects(batch.layer_end <= weights.layers, "write_gates", "lanes.layer_end", batch.layer_end,
            [&] { return "the gate has " + std::to_string(weights.layers) + " layers"; });
    check_rows("pre", pre, weights);
    check_rows("post", post, weights);
    expects(out.data != nullptr, "write_gates", "out", "null", "every lane has a row to be written to");
  }

 private:
  static void check_rows(char const* name, row_view const& rows, write_gate_weights const& weights) {
    expects(rows.rows.base != nullptr || rows.rows.bases.data != nullptr, "write_gates", name, "null",
            "a signal is the engine's memory");
    expects(rows.rows.element != codec::opaque, "write_gates", name, "opaque rows", "only their engine can read them");
    detail::check_scales("write_gates", name, rows.rows);
    expects(
        rows.rows.channels == weights.dims, "write_gates", [&] { return std::string(name) + ".dims"; },
        rows.rows.channels, [&] { return "the gate is of " + std::to_string(weights.dims) + " channels"; });
  }
};
inline constexpr write_gates_t write_gates{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
