// Ready compositions: one function a system, with the paper's defaults.
#pragma once

#include <kvpolicy/admission/admission.hpp>
#include <kvpolicy/eviction/eviction.hpp>
#include <kvpolicy/scorers/full.hpp>
#include <kvpolicy/scorers/h2o.hpp>
#include <kvpolicy/scorers/head_table.hpp>
#include <kvpolicy/scorers/intent_kv.hpp>
#include <kvpolicy/scorers/knorm.hpp>
#include <kvpolicy/scorers/quest.hpp>
#include <kvpolicy/scorers/random.hpp>
#include <kvpolicy/scorers/snapkv.hpp>
#include <kvpolicy/scorers/streaming_llm.hpp>
#include <kvpolicy/scorers/tova.hpp>
#include <kvpolicy/scorers/trim_kv.hpp>
#include <kvpolicy/scorers/write_gate.hpp>
#include <kvpolicy/selection/selection.hpp>

namespace KVPOLICY_NAMESPACE::policies {

/// What every ready policy takes: its scorer's parameters, the entries a lane may keep, and sinks among them.
template <class Score>
struct options {
  int budget = 1024;  ///< entries a lane, forced ones included
  Score score = {};
  int sinks = 0;  ///< first positions that are kept whatever they score
};

namespace detail {

template <class Score>
[[nodiscard]] constexpr auto keep_best(options<Score> const& with) {
  return eviction{.score = with.score, .protect = kvpolicy::sinks{with.sinks}, .budget = per_lane{with.budget}};
}

}  // namespace detail

/// The full cache.
[[nodiscard]] constexpr auto full() { return eviction{.score = kvpolicy::full{}, .budget = unlimited{}}; }

/// Sinks and the most recent entries.
struct streaming_llm_options {
  int budget = 1024;  ///< entries a lane, sinks included
  int sinks = 4;
};
/// Sinks and the most recent entries; decide after every forward.
[[nodiscard]] constexpr auto streaming_llm(streaming_llm_options with = {}) {
  return eviction{.score = kvpolicy::streaming_llm{with.sinks}, .budget = per_lane{with.budget}};
}

/// The observation window's pooled attention; decide once, at the end of the prefill.
[[nodiscard]] constexpr auto snapkv(options<kvpolicy::snapkv> with = {}) { return detail::keep_best(with); }

/// Heavy hitters and recent entries; observe and decide after every forward.
[[nodiscard]] constexpr auto h2o(options<kvpolicy::h2o> with = {}) { return detail::keep_best(with); }

/// What the last row looks at, one set a layer; decide after every forward.
[[nodiscard]] constexpr auto tova(options<kvpolicy::tova> with = {}) { return detail::keep_best(with); }

/// A budget of tokens of the sequence, and the scorer's parameters.
struct intent_kv_options {
  int budget = 8192;  ///< tokens, forced ones included
  kvpolicy::intent_kv score = {};
};
/// What a session's turns have asked for, one set for all layers and heads; observe and decide after each turn's
/// prefill, carry out by dead_slot.
[[nodiscard]] constexpr auto intent_kv(intent_kv_options with = {}) {
  return eviction{.score = with.score, .budget = per_lane{with.budget}};
}

/// What its gate lets last; observe and decide after every forward.
[[nodiscard]] constexpr auto trim_kv(options<kvpolicy::trim_kv> with = {}) { return detail::keep_best(with); }

/// The same for decoding by one token at a time: once a lane is over its budget, each step drops its lowest entry, and
/// the next token takes its slot. Carry out by overwrite.
[[nodiscard]] constexpr auto trim_kv_decode(options<kvpolicy::trim_kv> with = {}) {
  return eviction{.score = with.score,
                  .protect = kvpolicy::sinks{with.sinks},
                  .budget = per_lane{with.budget},
                  .pick = lowest_one{}};
}

/// The keys of smallest norm.
[[nodiscard]] constexpr auto knorm(options<kvpolicy::knorm> with = {}) { return detail::keep_best(with); }

/// Random entries.
[[nodiscard]] constexpr auto random(options<kvpolicy::random_scores> with = {}) { return detail::keep_best(with); }

/// A window, and the write gate's threshold.
///
/// `strict` is the released code's rule: g > threshold, where the threshold is rounded to the type of the tensor that
/// holds the gates (`gate_type`), because that is what comparing the tensor with a number does there: of bfloat16 gates
/// 0.1 is 0.10009765625. Without it g >= threshold, as the paper has it, in float32.
struct wg_kv_options {
  int window = 256;
  float threshold = 0.1f;
  bool strict = false;
  int cap = -1;                  ///< admitted entries of a lane, at most; -1: no cap
  codec gate_type = codec::f32;  ///< element type of the engine's gates; matters with `strict` alone
};
/// What the write gate admits, beside the window (WG-KV).
[[nodiscard]] constexpr auto wg_kv(wg_kv_options with = {}) {
  return admission{
      .score = kvpolicy::write_gate{},
      .protect = nothing{},
      .window = with.window,
      .pick = at_least{with.strict ? rounded_to(with.gate_type, with.threshold) : with.threshold, with.strict},
      .cap = with.cap};
}

/// A window, and sinks that are admitted in every head.
struct local_attention_options {
  int window = 256;
  int sinks = 0;
};
/// The window and the sinks, whatever was written. Keys keep their phases, unlike StreamingLLM's.
[[nodiscard]] constexpr auto local_attention(local_attention_options with = {}) {
  return admission{
      .score = kvpolicy::head_table{}, .protect = sinks{with.sinks}, .window = with.window, .pick = at_least{0.5f}};
}

/// A window and sinks for the heads that stream, and which heads do not.
struct duo_attention_options {
  int window = 256;
  int sinks = 128;
  by_lane<float const> retrieval{};  ///< a number a lane: more than 0.5 keeps everything; `retrieval_heads` makes it
};
/// Everything in retrieval heads, window and sinks in the others (DuoAttention).
[[nodiscard]] constexpr auto duo_attention(duo_attention_options with = {}) {
  return admission{.score = kvpolicy::head_table{with.retrieval},
                   .protect = sinks{with.sinks},
                   .window = with.window,
                   .pick = at_least{.least = 0.5f, .strict = true}};
}

/// Tokens that are read, and the scorer's parameters.
struct quest_options {
  int budget = 512;  ///< tokens a lane, the last page's among them
  kvpolicy::quest score = {};
  int dense_layers = 2;
};
/// The pages in which the query can find most; observe after every forward, select in every decode step.
[[nodiscard]] constexpr auto quest(quest_options with = {}) {
  return selection{.score = with.score, .budget = per_lane{with.budget}, .dense_layers = with.dense_layers};
}

}  // namespace KVPOLICY_NAMESPACE::policies
