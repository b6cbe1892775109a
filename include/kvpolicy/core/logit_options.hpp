// SPDX-License-Identifier: Apache-2.0
// How a model makes attention logits of queries and keys: the scale, a soft cap, and sink logits.
#pragma once

#include <cmath>
#include <cstdint>
#include <kvpolicy/core/config.hpp>
#include <kvpolicy/core/lanes.hpp>
#include <kvpolicy/core/signal_rows.hpp>
#include <optional>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// Learned sink logits [layer, query head], float32, in the executor's memory (gpt-oss). The sink of a query head takes
/// part in the maximum and in the sum of each of the head's softmaxes, and belongs to no entry: its probability is
/// dropped. A sink of -inf is none. Layers and query heads are numbered as in the model, query heads are contiguous.
struct sink_logits {
  float const* data = nullptr;  ///< null: the model has no sinks
  std::int64_t layer = 0;       ///< stride between layers, in floats
  std::int64_t head = 1;        ///< stride between query heads, in floats
  [[nodiscard]] KVPOLICY_HD float at(int in_layer, int query_head) const {
    return data[in_layer * layer + query_head * head];
  }
};

/// What a logit is: x = scale q.k, then x = soft_cap tanh(x / soft_cap) if there is a cap. The softmax of a row runs
/// over the entries and the sink.
///
///     cache.logits = {.scale = 1 / std::sqrt(192.0f)};    // DeepSeek: latent rows of 576
///     cache.logits = {.scale = 1 / 16.0f, .soft_cap = 50};  // Gemma 2: query_pre_attn_scalar, attn_logit_softcapping
struct logit_options {
  std::optional<float> scale{};  ///< the factor of q.k; empty: 1 / sqrt(channels of the keys)
  float soft_cap = 0;            ///< c: a logit x becomes c tanh(x / c); 0: there is no cap
  sink_logits sinks{};
};

namespace detail {

/// The factor of q.k for keys of `dims` channels.
[[nodiscard]] inline float scale_of(logit_options const& how, int dims) {
  return how.scale.has_value() ? *how.scale : 1.0f / std::sqrt(static_cast<float>(dims));
}

/// Refuses a scale and a soft cap with which no softmax has a meaning, and sinks that layers would share.
inline void check_logits(char const* call, char const* name, logit_options const& how, lanes const& batch) {
  auto const member = [name](char const* which) { return [=] { return std::string(name) + which; }; };
  float const scale = how.scale.value_or(1.0f);
  expects(std::isfinite(scale) && scale > 0, call, member(".scale"), scale,
          "the factor of q.k is a finite number above 0");
  expects(std::isfinite(how.soft_cap) && how.soft_cap >= 0, call, member(".soft_cap"), how.soft_cap,
          "a cap is a finite number above 0, and 0 stands for none");
  if (how.sinks.data != nullptr) check_stride(call, member(".sinks.layer"), how.sinks.layer, "layers", batch.layers());
}

/// Refuses sink logits that are NaN or +inf. It reads them, so it is called only if the host can read the executor's
/// memory.
inline void check_sinks(char const* call, char const* name, sink_logits const& sinks, lanes const& batch,
                        int query_heads) {
  if (sinks.data == nullptr) return;
  for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) {
    for (int head = 0; head < query_heads; ++head) {
      float const sink = sinks.at(layer, head);
      expects(
          sink < INFINITY, call,
          [&] {
            return std::string(name) + ".sinks (layer " + std::to_string(layer) + ", query head " +
                   std::to_string(head) + ")";
          },
          sink, "a sink is a number, or -inf for a head without one");
    }
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
