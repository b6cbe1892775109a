// SPDX-License-Identifier: Apache-2.0
// The options of a llama.cpp context under a policy, and the models and caches that are refused.
#pragma once

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cstdlib>
#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <thread>
#include <vector>

#include "decode_watch.hpp"

namespace llama_cpp {

namespace kv = kvpolicy;

struct context_options {
  int cells = 4096;  ///< tokens that the cache holds, those of all sequences together
  int sequences = 1;
  int chunk = 512;  ///< tokens of a decode at most; a prefill is read in chunks of this size
  int threads = 0;  ///< of llama.cpp; 0: one for each core
  ggml_type type_k = GGML_TYPE_F16;
  ggml_type type_v = GGML_TYPE_F16;
  bool flash_attention = true;
  bool keep_keys = false;   ///< keep a copy in float32 of keys that are quantised, for policies that read keys
  bool count_cells = true;  ///< notice at each call cells which somebody else has removed amid a sequence
};

namespace detail {

/// Refuses models whose cache is not one cell for each token of each layer.
inline void check_model(llama_model const* with) {
  auto const refuse = [](bool wrong, char const* what, char const* rule) {
    kv::expects(!wrong, "llama_cpp::engine", "model", what, rule);
  };
  kv::expects(with != nullptr, "llama_cpp::engine", "model", "null", "llama_model_load_from_file has failed");
  refuse(llama_model_is_recurrent(with), "recurrent", "its state has no rows that could be evicted");
  refuse(llama_model_is_hybrid(with), "hybrid", "the state of its recurrent layers has no rows that could be evicted");
  refuse(llama_model_has_encoder(with), "an encoder and a decoder", "the engine reads one text");
  int const window = llama_model_n_swa(with);
  kv::expects(
      window <= 0, "llama_cpp::engine", "model", [&] { return "a sliding window of " + std::to_string(window); },
      "llama.cpp masks by the positions of cells, which mean nothing after an eviction");
  auto const rope = llama_model_rope_type(with);
  refuse(rope != LLAMA_ROPE_TYPE_NONE && rope != LLAMA_ROPE_TYPE_NORM && rope != LLAMA_ROPE_TYPE_NEOX,
         "RoPE of several positions", "a token has one position");
}

/// The element type as the library knows it. Types that it cannot read are opaque: their rows are moved.
[[nodiscard]] inline kv::codec codec_of(ggml_type type) {
  if (type == GGML_TYPE_F32) return kv::codec::f32;
  if (type == GGML_TYPE_F16) return kv::codec::f16;
  return type == GGML_TYPE_BF16 ? kv::codec::bf16 : kv::codec::opaque;
}

/// Refuses sizes and types that no context has.
inline void check_options(context_options const& options) {
  auto const positive = [](char const* what, int value) {
    kv::expects(value >= 1, "llama_cpp::engine", what, value, "it must be at least 1");
  };
  positive("cells", options.cells);
  positive("sequences", options.sequences);
  positive("chunk", options.chunk);
  auto const most = static_cast<int>(llama_max_parallel_sequences()) - 1;
  kv::expects(options.sequences <= most, "llama_cpp::engine", "sequences", options.sequences,
              [&] { return "llama.cpp has at most " + std::to_string(most) + " beside the engine's own"; });
  kv::expects(options.threads >= 0, "llama_cpp::engine", "threads", options.threads, "0 stands for all cores");
  bool const quantised = detail::codec_of(options.type_v) == kv::codec::opaque;
  kv::expects(!quantised || options.flash_attention, "llama_cpp::engine", "type_v", ggml_type_name(options.type_v),
              "quantised values need flash attention");
}

/// The channels of a head's keys or values, as the model's file says, or else as many as share its width out.
[[nodiscard]] inline int head_channels(llama_model const* of, char const* which) {
  char text[128] = {};
  int const heads = llama_model_n_head(of);
  int const usual = heads > 0 ? llama_model_n_embd(of) / heads : 0;
  if (llama_model_meta_val_str(of, "general.architecture", text, sizeof text) < 0) return usual;
  std::string const key = std::string(text) + ".attention." + which + "_length";
  return llama_model_meta_val_str(of, key.c_str(), text, sizeof text) < 0 ? usual : std::atoi(text);
}

/// Refuses an element type whose blocks would hold channels of two heads, because the rows of heads are moved.
inline void check_blocks(char const* option, ggml_type type, int channels) {
  auto const block = ggml_blck_size(type);
  kv::expects(
      block > 0 && channels % block == 0, "llama_cpp::engine", option,
      [&] { return std::string(ggml_type_name(type)) + " with heads of " + std::to_string(channels) + " channels"; },
      [&] { return "a block of this type has " + std::to_string(block) + " channels, and a head is whole blocks"; });
}

/// Refuses the types of a cache that the heads of a model do not fit.
inline void check_types(llama_model const* with, context_options const& options) {
  check_blocks("type_k", options.type_k, head_channels(with, "key"));
  check_blocks("type_v", options.type_v, head_channels(with, "value"));
}

/// The options as llama.cpp takes them.
[[nodiscard]] inline llama_context_params params_of(context_options const& options) {
  llama_context_params params = llama_context_default_params();
  int const cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  params.n_ctx = static_cast<std::uint32_t>(options.cells);
  params.n_seq_max = static_cast<std::uint32_t>(options.sequences + 1);  // one is spare: see context::move_newest_down
  params.n_batch = std::max(static_cast<std::uint32_t>(options.chunk), params.n_seq_max);
  params.n_ubatch = params.n_batch;  // a decode is one graph
  params.kv_unified = true;          // all sequences have their cells in one place
  params.n_threads = options.threads > 0 ? options.threads : cores;
  params.n_threads_batch = params.n_threads;
  params.type_k = options.type_k;
  params.type_v = options.type_v;
  params.flash_attn_type = options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.offload_kqv = false;  // the cache is in the host's memory
  params.swa_full = true;
  return params;
}

/// Refuses a graph in which a layer reads no plain cache, or another one than the first layer.
inline void check_layers(std::vector<layer_tensors> const& layers, std::string const& stray) {
  layer_tensors const& first = layers.front();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layer_tensors const& layer = layers[i];
    std::string const where = "layer " + std::to_string(i);
    auto const expects = [&](bool ok, std::string const& found, std::string const& rule) {
      kv::expects(ok, "llama_cpp::engine", "model", found, rule);
    };
    std::string const other = stray.empty() ? " without a cache" : " with the cache " + stray;
    expects(layer.k != nullptr && layer.v != nullptr, where + other,
            "each layer has the tensors cache_k_l" + std::to_string(i) + " and cache_v_l" + std::to_string(i));
    bool const on_host = ggml_backend_buffer_is_host(layer.k->buffer) && ggml_backend_buffer_is_host(layer.v->buffer);
    expects(on_host, where + " with a cache in " + ggml_backend_buffer_name(layer.k->buffer) + " memory",
            "the host reads and writes the cache");
    bool const alike = layer.k->ne[0] == first.k->ne[0] && layer.v->ne[0] == first.v->ne[0] &&
                       layer.query_heads == first.query_heads && layer.query_dims == first.query_dims;
    expects(alike, where + " with other heads than layer 0", "all layers are alike");
    expects(
        layer.scale > 0 && layer.scale == first.scale && layer.query_dims > 0 && layer.k->ne[0] % layer.query_dims == 0,
        where + " with an attention that is none of the known ones", "it is a softmax of scaled products");
    expects(layer.max_bias == 0, where + " with ALiBi", "positions of cells mean nothing after an eviction");
    expects(!layer.sinks && layer.softcap >= 0, where + " with sinks or a soft cap", "its numbers are known");
  }
}

}  // namespace detail
}  // namespace llama_cpp
