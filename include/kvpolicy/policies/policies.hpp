// SPDX-License-Identifier: Apache-2.0
// Ready compositions: one function for each published system, with the paper's defaults.
#pragma once

#include <kvpolicy/admission/admission.hpp>
#include <kvpolicy/decision/eviction.hpp>
#include <kvpolicy/parts/ramp.hpp>
#include <kvpolicy/scorers/full.hpp>
#include <kvpolicy/scorers/h2o.hpp>
#include <kvpolicy/scorers/head_table.hpp>
#include <kvpolicy/scorers/intent_kv.hpp>
#include <kvpolicy/scorers/knorm.hpp>
#include <kvpolicy/scorers/not_stale.hpp>
#include <kvpolicy/scorers/quest.hpp>
#include <kvpolicy/scorers/random.hpp>
#include <kvpolicy/scorers/recorded_knorm.hpp>
#include <kvpolicy/scorers/snapkv.hpp>
#include <kvpolicy/scorers/streaming_llm.hpp>
#include <kvpolicy/scorers/tova.hpp>
#include <kvpolicy/scorers/trim_kv.hpp>
#include <kvpolicy/scorers/write_gate.hpp>
#include <kvpolicy/selection/selection.hpp>

namespace KVPOLICY_NAMESPACE::policies {

/// The options of most ready policies: a budget, the scorer's parameters, and sinks.
template <class Score>
struct options {
  int budget = 1024;  ///< entries that a lane may keep, forced ones included
  Score score = {};
  int sinks = 0;  ///< first positions that are kept whatever they score
};

namespace detail {

template <class Score>
[[nodiscard]] constexpr auto keep_best(options<Score> const& with) {
  return eviction{.score = with.score, .protect = kvpolicy::sinks{with.sinks}, .budget = per_lane{with.budget}};
}

template <class Score>
[[nodiscard]] constexpr auto drop_worst(options<Score> const& with) {
  return eviction{.score = with.score,
                  .protect = kvpolicy::sinks{with.sinks},
                  .budget = per_lane{with.budget},
                  .pick = lowest_one{}};
}

}  // namespace detail

/// The full cache, which drops nothing.
[[nodiscard]] constexpr auto full() { return eviction{.score = kvpolicy::full{}, .budget = unlimited{}}; }

/// The options of StreamingLLM.
struct streaming_llm_options {
  int budget = 1024;  ///< entries that a lane may keep, sinks included
  int sinks = 4;
};
/// Keeps the sinks and the most recent entries. Decide after every forward.
[[nodiscard]] constexpr auto streaming_llm(streaming_llm_options with = {}) {
  return eviction{.score = kvpolicy::streaming_llm{with.sinks}, .budget = per_lane{with.budget}};
}

/// StreamingLLM for decoding one token at a time: once a lane exceeds its budget, each step drops the oldest entry that
/// is no sink, and the next token takes its slot. Apply with `overwrite`.
[[nodiscard]] constexpr auto streaming_llm_decode(streaming_llm_options with = {}) {
  return eviction{.score = kvpolicy::streaming_llm{with.sinks}, .budget = per_lane{with.budget}, .pick = lowest_one{}};
}

/// Keeps the entries that receive the most pooled attention from the observation window. Decide once, at the end of the
/// prefill.
[[nodiscard]] constexpr auto snapkv(options<kvpolicy::snapkv> with = {}) { return detail::keep_best(with); }

/// The options of PyramidKV.
struct pyramid_kv_options {
  int budget = 1024;  ///< entries that a lane may keep on average over the layers, forced ones included
  kvpolicy::snapkv score = {};
  double beta = 20;
  int sinks = 0;
};
/// Keeps what SnapKV keeps, with budgets that fall from the first layer to the last. Decide once, at the end of the
/// prefill.
[[nodiscard]] constexpr auto pyramid_kv(pyramid_kv_options with = {}) {
  return eviction{.score = with.score,
                  .protect = kvpolicy::sinks{with.sinks},
                  .budget = ramp{with.budget, {.beta = with.beta, .window = with.score.window}}};
}

/// Keeps the entries that have received the most attention so far, and the most recent ones. Observe and decide after
/// every forward.
[[nodiscard]] constexpr auto h2o(options<kvpolicy::h2o> with = {}) { return detail::keep_best(with); }

/// H2O for decoding one token at a time: once a lane exceeds its budget, each step drops the entry before the recent
/// ones that has received the least attention, and the next token takes its slot. Observe every forward, and apply with
/// `overwrite`.
[[nodiscard]] constexpr auto h2o_decode(options<kvpolicy::h2o> with = {}) { return detail::drop_worst(with); }

/// Keeps the tokens that receive the most attention from the last query row, with one keep set for each layer. Decide
/// after every forward.
[[nodiscard]] constexpr auto tova(options<kvpolicy::tova> with = {}) { return detail::keep_best(with); }

/// The options of IntentKV.
struct intent_kv_options {
  int budget = 8192;  ///< tokens that a sequence may keep, forced ones included
  kvpolicy::intent_kv score = {};
};
/// Keeps the tokens that receive the most attention from the session's query memory, with one keep set for all layers
/// and heads. Observe and decide after each turn's prefill, and apply with `dead_slot`.
[[nodiscard]] constexpr auto intent_kv(intent_kv_options with = {}) {
  return eviction{.score = with.score, .budget = per_lane{with.budget}};
}

/// Keeps the tokens with the highest predicted retention. Observe and decide after every forward.
[[nodiscard]] constexpr auto trim_kv(options<kvpolicy::trim_kv> with = {}) { return detail::keep_best(with); }

/// TRIM-KV for decoding one token at a time: once a lane exceeds its budget, each step drops the entry with the lowest
/// score, and the next token takes its slot. Apply with `overwrite`.
[[nodiscard]] constexpr auto trim_kv_decode(options<kvpolicy::trim_kv> with = {}) { return detail::drop_worst(with); }

/// Keeps the entries whose keys have the smallest norms.
[[nodiscard]] constexpr auto knorm(options<kvpolicy::knorm> with = {}) { return detail::keep_best(with); }

/// Knorm for decoding one token at a time: the norm of a key is computed once. Each step drops the entry whose key has
/// the largest norm, and the next token takes its slot. Observe every forward, and apply with `overwrite`.
[[nodiscard]] constexpr auto knorm_decode(options<kvpolicy::recorded_knorm> with = {}) {
  return detail::drop_worst(with);
}

/// Keeps random entries.
[[nodiscard]] constexpr auto random(options<kvpolicy::random_scores> with = {}) { return detail::keep_best(with); }

/// The options of WG-KV.
///
/// By default an entry is admitted if g >= threshold in float32, as in the paper. `strict` is the rule of the released
/// code: g > threshold, with the threshold rounded to `gate_type`. The rounding happens there because a tensor of that
/// type is compared with a number: for bfloat16 gates a threshold of 0.1 becomes 0.10009765625.
struct wg_kv_options {
  int window = 256;
  float threshold = 0.1f;
  bool strict = false;
  int cap = -1;                  ///< the largest number of admitted entries of a lane; -1: no cap
  codec gate_type = codec::f32;  ///< the element type of the engine's gates; only read if `strict`
};
/// Keeps the window, and the entries that the write gate admits when they leave it (WG-KV).
[[nodiscard]] constexpr auto wg_kv(wg_kv_options with = {}) {
  return admission{
      .score = kvpolicy::write_gate{},
      .protect = nothing{},
      .window = with.window,
      .pick = at_least{with.strict ? rounded_to(with.gate_type, with.threshold) : with.threshold, with.strict},
      .cap = with.cap};
}

/// The options of local attention.
struct local_attention_options {
  int window = 256;
  int sinks = 0;
};
/// Keeps the window and the sinks of every head. Unlike StreamingLLM it does not re-rotate keys.
[[nodiscard]] constexpr auto local_attention(local_attention_options with = {}) {
  return admission{
      .score = kvpolicy::head_table{}, .protect = sinks{with.sinks}, .window = with.window, .pick = at_least{0.5f}};
}

/// The options of DuoAttention. The window and the sinks are those of the streaming heads.
struct duo_attention_options {
  int window = 256;
  int sinks = 128;
  by_lane<float const> retrieval{};  ///< one number for each lane: a head of more than 0.5 keeps all of its entries;
                                     ///< `retrieval_heads` computes them
};
/// Keeps everything in retrieval heads, and the window and the sinks in streaming heads (DuoAttention).
[[nodiscard]] constexpr auto duo_attention(duo_attention_options with = {}) {
  return admission{.score = kvpolicy::head_table{with.retrieval},
                   .protect = sinks{with.sinks},
                   .window = with.window,
                   .pick = at_least{.least = 0.5f, .strict = true}};
}

/// Drops the entries in spans that the model has called stale, and nothing else (SideQuest). Decide whenever it has
/// named some; there is no budget.
[[nodiscard]] constexpr auto side_quest() {
  return eviction{.score = not_stale{}, .protect = nothing{}, .budget = unlimited{}, .pick = at_least{0.5f}};
}

/// The options of Quest.
struct quest_options {
  int budget = 512;  ///< tokens that a lane reads, those of its last page included
  kvpolicy::quest score = {};
  int dense_layers = 2;  ///< the first layers, which read all pages
};
/// Reads the pages whose keys can have the largest dot product with the query. Observe after every forward, and select
/// in every decode step.
[[nodiscard]] constexpr auto quest(quest_options with = {}) {
  return selection{.score = with.score, .budget = per_lane{with.budget}, .dense_layers = with.dense_layers};
}

}  // namespace KVPOLICY_NAMESPACE::policies
