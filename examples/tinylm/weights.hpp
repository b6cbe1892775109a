// SPDX-License-Identifier: Apache-2.0
// tinylm's configuration and weights, read from a safetensors file.
#pragma once

#include <filesystem>
#include <kvpolicy/core/lanes.hpp>
#include <locale>
#include <sstream>
#include <string>
#include <vector>

#include "safetensors.hpp"

namespace tinylm {

/// The sizes of the model, under the names that tools/train_tinylm.py gives them.
struct config {
  int vocab = 0;
  int width = 0;
  int layers = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int hidden = 0;
  int ngrams = 0;
  int ngram_buckets = 0;
  float rope_theta = 0;
  float norm_eps = 0;

  [[nodiscard]] kv::shape shape() const {
    return {.layers = layers, .query_heads = q_heads, .kv_heads = kv_heads, .head_dim = head_dim};
  }
};

/// The weights of a block. Matrices are [out, in], row-major. Matrices of the same input are stacked.
struct block_weights {
  std::vector<float> attention_norm;
  std::vector<float> qkv;  ///< wq, wk, wv
  std::vector<float> wo;
  std::vector<float> mlp_norm;
  std::vector<float> gate_up;  ///< gate, up
  std::vector<float> down;
};

struct weights {
  config about;
  std::vector<float> embedding;
  std::vector<std::vector<float>> ngrams;  ///< tables for hashes of the last 2, 3, ... bytes
  std::vector<block_weights> blocks;
  std::vector<float> norm;
  std::vector<float> head;

  /// Calls visit(std::vector<float> const&) for every tensor.
  template <class Visit>
  void for_each(Visit const& visit) const {
    visit(embedding);
    for (auto const& table : ngrams) visit(table);
    for (block_weights const& one : blocks) {
      for (auto const* each : {&one.attention_norm, &one.qkv, &one.wo, &one.mlp_norm, &one.gate_up, &one.down})
        visit(*each);
    }
    visit(norm);
    visit(head);
  }
};

namespace detail {

template <class Number>
Number number_in(safetensors const& file, char const* key) {
  std::string const& text = file.metadata(key);
  Number value{};
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  bool const whole = in >> std::noskipws >> value && in.peek() == std::istringstream::traits_type::eof();
  kv::expects(whole && value > Number{}, "weights", key, text, "it must be a positive number");
  return value;
}

inline config read_config(safetensors const& file) {
  auto const whole = [&](char const* key) { return number_in<int>(file, key); };
  config const c{whole("vocab"),
                 whole("width"),
                 whole("layers"),
                 whole("q_heads"),
                 whole("kv_heads"),
                 whole("head_dim"),
                 whole("hidden"),
                 whole("ngrams"),
                 whole("ngram_buckets"),
                 number_in<float>(file, "rope_theta"),
                 number_in<float>(file, "norm_eps")};
  kv::expects(c.vocab == 256, "weights", "vocab", c.vocab, "tokens are bytes");
  kv::expects(c.q_heads % c.kv_heads == 0, "weights", "q_heads", c.q_heads, "KV heads divide query heads");
  kv::expects(c.head_dim % 2 == 0, "weights", "head_dim", c.head_dim, "RoPE pairs channels");
  kv::expects(c.width % c.ngrams == 0, "weights", "ngrams", c.ngrams, "every table owns as many channels");
  kv::expects((c.ngram_buckets & (c.ngram_buckets - 1)) == 0 && c.ngram_buckets > 1, "weights", "ngram_buckets",
              c.ngram_buckets, "a hash is cut to bits");
  return c;
}

/// Reads the matrices of one input and stacks them.
inline std::vector<float> stacked(safetensors const& file, std::string const& prefix, int in,
                                  std::initializer_list<std::pair<char const*, int>> names) {
  std::vector<float> all;
  for (auto const& [name, out] : names) {
    auto const part =
        file.floats(prefix + name + ".weight", {static_cast<std::uint64_t>(out), static_cast<std::uint64_t>(in)});
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace detail

/// Reads the weights of a model.
/// - throws: `kvpolicy::invalid_argument` if the file is not sound, or a tensor is missing or has another shape.
[[nodiscard]] inline weights read_weights(std::filesystem::path const& path) {
  safetensors const file(path);
  config const c = detail::read_config(file);
  auto const size = [](int n) { return static_cast<std::uint64_t>(n); };
  weights all{.about = c,
              .embedding = file.floats("embedding.weight", {size(c.vocab), size(c.width)}),
              .ngrams = {},
              .blocks = {},
              .norm = file.floats("norm.weight", {size(c.width)}),
              .head = detail::stacked(file, "", c.width, {{"head", c.vocab}})};
  for (int i = 0; i < c.ngrams; ++i) {
    all.ngrams.push_back(
        file.floats("ngrams." + std::to_string(i) + ".weight", {size(c.ngram_buckets), size(c.width / c.ngrams)}));
  }
  for (int i = 0; i < c.layers; ++i) {
    std::string const of = "blocks." + std::to_string(i) + ".";
    int const q = c.q_heads * c.head_dim;
    int const k = c.kv_heads * c.head_dim;
    all.blocks.push_back({.attention_norm = file.floats(of + "attention_norm.weight", {size(c.width)}),
                          .qkv = detail::stacked(file, of, c.width, {{"wq", q}, {"wk", k}, {"wv", k}}),
                          .wo = detail::stacked(file, of, q, {{"wo", c.width}}),
                          .mlp_norm = file.floats(of + "mlp_norm.weight", {size(c.width)}),
                          .gate_up = detail::stacked(file, of, c.width, {{"gate", c.hidden}, {"up", c.hidden}}),
                          .down = detail::stacked(file, of, c.hidden, {{"down", c.width}})});
  }
  return all;
}

}  // namespace tinylm
