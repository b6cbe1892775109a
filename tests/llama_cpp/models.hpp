// SPDX-License-Identifier: Apache-2.0
// Small models of random numbers of the kinds that the engine refuses.
#pragma once

#include "fixture.hpp"

namespace llama_cpp_test {

/// A file with random weights that are the same in every run.
class random_model {
 public:
  /// With `tokens` the model has a vocabulary of SentencePiece, else none.
  explicit random_model(std::string architecture, std::vector<std::string> const& tokens = {})
      : architecture_(std::move(architecture)), file_(1 << 20) {
    int const count = tokens.empty() ? 256 : static_cast<int>(tokens.size());
    tinylm::config const c{.vocab = count,
                           .width = 32,
                           .layers = 2,
                           .q_heads = 4,
                           .kv_heads = 2,
                           .head_dim = 16,
                           .hidden = 64,
                           .ngrams = 1,
                           .ngram_buckets = 2,
                           .rope_theta = 10000,
                           .norm_eps = 1e-5f};
    llama_cpp::detail::write_config(file_, c, architecture_);
    tokens.empty() ? llama_cpp::detail::write_vocabulary(file_, {}) : write_sentencepiece(tokens);
    add("token_embd.weight", 32, count);
    add("output_norm.weight", 32, 1);
  }
  void set(std::string const& key, int value) { file_.set((architecture_ + "." + key).c_str(), value); }
  void add(std::string const& name, int inputs, int outputs) {
    std::vector<float> values;
    for (int i = 0; i < inputs * outputs; ++i) {
      seed_ = seed_ * 1664525u + 1013904223u;
      values.push_back(static_cast<float>(seed_ >> 8) / 8388608.0f - 1.0f);
    }
    file_.add(name, values, inputs);
  }
  void add(int layer, std::string const& name, int inputs, int outputs) {
    add("blk." + std::to_string(layer) + "." + name, inputs, outputs);
  }
  [[nodiscard]] model_pointer load() const {
    temporary_file const made;
    file_.write(made.path);
    return load_file(made.path);
  }

 private:
  /// The types of tokens are llama.cpp's: 2 unknown, 3 control, 6 a byte.
  void write_sentencepiece(std::vector<std::string> const& tokens) {
    std::vector<std::int32_t> types(tokens.size(), 6);
    types[0] = 2;
    types[1] = types[2] = 3;
    file_.set("tokenizer.ggml.model", "llama");
    file_.set("tokenizer.ggml.tokens", tokens);
    file_.set("tokenizer.ggml.token_type", types);
  }

  std::string architecture_;
  llama_cpp::detail::gguf_writer file_;
  std::uint32_t seed_ = 1;
};

/// A vocabulary of SentencePiece that has bytes only.
inline std::vector<std::string> sentencepiece_bytes() {
  std::vector<std::string> made{"<unk>", "<s>", "</s>"};
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char const* digits = "0123456789ABCDEF";
    made.push_back(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">");
  }
  return made;
}

/// The projections of a layer: 4 query heads, 2 KV heads, 16 channels.
inline void add_projections(random_model& made, int layer) {
  made.add(layer, "attn_q.weight", 32, 64);
  made.add(layer, "attn_k.weight", 32, 32);
  made.add(layer, "attn_v.weight", 32, 32);
  made.add(layer, "attn_output.weight", 64, 32);
  made.add(layer, "ffn_gate.weight", 32, 64);
  made.add(layer, "ffn_up.weight", 32, 64);
  made.add(layer, "ffn_down.weight", 64, 32);
}

/// A model whose layers attend to the last `window` tokens, or to all of them if it is 0.
inline model_pointer gemma3(int window) {
  random_model made("gemma3");
  if (window > 0) made.set("attention.sliding_window", window);
  for (int layer = 0; layer < 2; ++layer) {
    for (char const* norm : {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"})
      made.add(layer, std::string(norm) + ".weight", 32, 1);
    for (char const* norm : {"attn_q_norm", "attn_k_norm"}) made.add(layer, std::string(norm) + ".weight", 16, 1);
    add_projections(made, layer);
  }
  return made.load();
}

inline model_pointer mamba() {
  random_model made("mamba");
  made.set("ssm.conv_kernel", 4);
  made.set("ssm.inner_size", 64);
  made.set("ssm.state_size", 8);
  made.set("ssm.time_step_rank", 2);
  for (int layer = 0; layer < 2; ++layer) {
    made.add(layer, "attn_norm.weight", 32, 1);
    made.add(layer, "ssm_in.weight", 32, 128);
    made.add(layer, "ssm_conv1d.weight", 4, 64);
    made.add(layer, "ssm_conv1d.bias", 64, 1);
    made.add(layer, "ssm_x.weight", 64, 18);
    made.add(layer, "ssm_dt.weight", 2, 64);
    made.add(layer, "ssm_dt.bias", 64, 1);
    made.add(layer, "ssm_a", 8, 64);
    made.add(layer, "ssm_d", 64, 1);
    made.add(layer, "ssm_out.weight", 64, 32);
  }
  return made.load();
}

}  // namespace llama_cpp_test
