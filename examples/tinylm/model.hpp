// SPDX-License-Identifier: Apache-2.0
// tinylm: a byte-level decoder of four layers. Its attention reads the entries that the cache still holds.
#pragma once

#include <cstdint>
#include <functional>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/retention_gates.hpp>
#include <span>
#include <vector>

#include "attention.hpp"
#include "weights.hpp"

namespace tinylm {

/// The inputs of gates: a layer's rows of the new tokens, before its attention. They are valid until the next layer.
struct layer_rows {
  int layer = 0;
  kv::hidden_rows normed{};    ///< the output of the layer's input norm, from which keys and values are computed
  kv::row_view keys_before{};  ///< keys before RoPE, by lane and new token
  kv::row_view keys_after{};   ///< the same after RoPE
};

/// The optional arguments of a forward.
struct forward_hooks {
  /// Called when keys, values and queries of a layer are in their places. It may still change which entries the lanes
  /// read, by the counts and tables behind the cache's view.
  std::function<void(layer_rows const&)> before_attention{};
  std::function<void(int layer)> after_layer{};  ///< called when the layer is done
  kv::by_lane<std::uint8_t const> hidden{};      ///< see attention_call; for tests
  kv::mask_rows const* mask = nullptr;           ///< see attention_call
  vertical_slash const* slash = nullptr;         ///< see attention_call
};

/// One sequence of a forward over several, and how many of its last bytes are new: many in a prefill, one in a decode
/// step.
struct forward_part {
  std::span<std::uint8_t const> text;  ///< the sequence from its start, because n-grams read a few earlier bytes
  int num_new_tokens = 0;
  int sequence = 0;  ///< its index in the cache

  [[nodiscard]] int position() const { return static_cast<int>(text.size()) - num_new_tokens; }
};

/// The weights, and memory for one forward at a time. It knows no policy, and takes positions from the text alone.
class model {
 public:
  explicit model(weights from);

  [[nodiscard]] config const& about() const { return weights_.about; }
  [[nodiscard]] weights const& parameters() const { return weights_; }

  /// Runs the last `num_new_tokens` bytes of `text` (many in a prefill, one in a decode step) and returns their logits
  /// [num_new_tokens][vocab], which are valid until the next forward.
  ///
  /// - in: `text`, the sequence from its start, because n-grams read a few earlier bytes; `into`, a cache to which the
  ///   new tokens were appended already, as the last `num_new_tokens` entries of every lane.
  /// - out: the rows of K and V of these entries; `queries` grows by `num_new_tokens` rows.
  /// - throws: `invalid_argument` if the cache belongs to another model, or its last positions are not those of the
  ///   text.
  std::span<float const> forward(kv::host_executor& exec, std::span<std::uint8_t const> text, int num_new_tokens,
                                 kv::cache const& into, query_rows& queries, forward_hooks const& hooks = {}) {
    forward_part const part{text, num_new_tokens, 0};
    return forward(exec, {&part, 1}, into, queries, hooks);
  }

  /// Runs the new bytes of several sequences in one forward, prefills and decode steps beside each other. The rows of
  /// the logits and of `queries` are those of the first part, then those of the second, and so on.
  std::span<float const> forward(kv::host_executor& exec, std::span<forward_part const> parts, kv::cache const& into,
                                 query_rows& queries, forward_hooks const& hooks = {});

 private:
  /// The arguments of a forward, for its steps.
  struct pass;

  void check(forward_part const& part, kv::cache const& into) const;
  void embed(pass const& now);
  void make_phases(pass const& now);
  void attention(pass const& now, int layer);
  void place_rows(pass const& now, int layer);
  void attend_all(pass const& now, int layer, forward_hooks const& hooks);
  [[nodiscard]] layer_rows rows_of(int layer);
  void mlp(pass const& now, int layer);

  weights weights_;
  std::vector<float> frequency_;  ///< [D / 2], in radians per position
  std::vector<float> cosine_;     ///< [rows][D / 2]
  std::vector<float> sine_;       ///< [rows][D / 2]
  std::vector<float> x_;          ///< [rows][width]
  std::vector<float> normed_;     ///< [rows][width]
  std::vector<float> wide_;       ///< [rows][q, k and v, or gate and up]
  std::vector<float> keys_;       ///< [rows][KV head][D], before RoPE
  std::vector<float> inner_;      ///< [rows][input of wo or down]
  std::vector<float> logits_;
  std::vector<std::vector<float>> scratch_;
  std::vector<attention_call> calls_;
};

}  // namespace tinylm
