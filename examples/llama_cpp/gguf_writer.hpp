// SPDX-License-Identifier: Apache-2.0
// Writes a model as a GGUF file that llama.cpp reads.
#pragma once

#include <ggml.h>
#include <gguf.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <kvpolicy/kvpolicy.hpp>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace llama_cpp {

namespace kv = kvpolicy;

namespace detail {

/// The file that is being made, and the memory of its tensors.
class gguf_writer {
 public:
  /// - in: `floats` times four bytes are reserved for the tensors.
  explicit gguf_writer(std::size_t floats)
      : memory_(ggml_init(
            {.mem_size = floats * sizeof(float) + (std::size_t{1} << 20), .mem_buffer = nullptr, .no_alloc = false})),
        file_(gguf_init_empty()) {}

  void set(char const* key, int value) { gguf_set_val_u32(file_.get(), key, static_cast<std::uint32_t>(value)); }
  void set(char const* key, float value) { gguf_set_val_f32(file_.get(), key, value); }
  void set(char const* key, char const* value) { gguf_set_val_str(file_.get(), key, value); }
  void set(char const* key, std::vector<std::string> const& values) {
    std::vector<char const*> each;
    for (std::string const& one : values) each.push_back(one.c_str());
    gguf_set_arr_str(file_.get(), key, each.data(), each.size());
  }
  void set(char const* key, std::vector<std::int32_t> const& values) {
    gguf_set_arr_data(file_.get(), key, GGUF_TYPE_INT32, values.data(), values.size());
  }

  /// Adds a matrix [outputs][inputs], or a vector.
  void add(std::string const& name, std::span<float const> values, int inputs) {
    auto const outputs = static_cast<std::int64_t>(values.size()) / inputs;
    ggml_tensor* const made = outputs == 1 ? ggml_new_tensor_1d(memory_.get(), GGML_TYPE_F32, inputs)
                                           : ggml_new_tensor_2d(memory_.get(), GGML_TYPE_F32, inputs, outputs);
    ggml_set_name(made, name.c_str());
    std::memcpy(made->data, values.data(), values.size_bytes());
    gguf_add_tensor(file_.get(), made);
  }

  /// Adds a matrix [outputs][inputs] of any type, whose bytes fill(span) writes.
  template <class Fill>
  void add(std::string const& name, ggml_type type, int inputs, int outputs, Fill const& fill) {
    ggml_tensor* const made = ggml_new_tensor_2d(memory_.get(), type, inputs, outputs);
    ggml_set_name(made, name.c_str());
    fill(std::span(static_cast<std::byte*>(made->data), ggml_nbytes(made)));
    gguf_add_tensor(file_.get(), made);
  }

  void write(std::filesystem::path const& to) const {
    bool const done = gguf_write_to_file(file_.get(), to.string().c_str(), false);
    kv::expects(done, "write_gguf", "file", to.string(), "it cannot be written");
  }

 private:
  struct free_all {
    void operator()(ggml_context* one) const { ggml_free(one); }
    void operator()(gguf_context* one) const { gguf_free(one); }
  };
  std::unique_ptr<ggml_context, free_all> memory_;
  std::unique_ptr<gguf_context, free_all> file_;
};

/// The sizes of a model whose layers have attention and a gated MLP.
struct model_sizes {
  std::string name;
  int vocabulary = 0;
  int width = 0;
  int layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int hidden = 0;
  int context = 0;  ///< tokens
  float rope_theta = 10000;
  float norm_eps = 1e-5f;
};

/// Writes the sizes of a model under the names of an architecture of llama.cpp.
inline void write_config(gguf_writer& to, model_sizes const& c, std::string const& architecture = "llama") {
  to.set("general.architecture", architecture.c_str());
  to.set("general.name", c.name.c_str());
  auto const set = [&](char const* key, auto value) { to.set((architecture + "." + key).c_str(), value); };
  set("vocab_size", c.vocabulary);
  set("context_length", c.context);
  set("embedding_length", c.width);
  set("block_count", c.layers);
  set("feed_forward_length", c.hidden);
  set("attention.head_count", c.query_heads);
  set("attention.head_count_kv", c.kv_heads);
  set("attention.key_length", c.head_dim);
  set("attention.value_length", c.head_dim);
  set("attention.layer_norm_rms_epsilon", c.norm_eps);
  set("rope.freq_base", c.rope_theta);
  set("rope.dimension_count", c.head_dim);
}

/// A byte as GPT-2's vocabularies spell it: printable bytes stand for themselves, the others for characters from 256
/// on.
inline std::string spelled_byte(int byte) {
  auto const prints = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255); };
  int character = byte;
  if (!prints(byte)) {
    character = 256;
    for (int b = 0; b < byte; ++b) character += prints(b) ? 0 : 1;
  }
  if (character < 128) return std::string(1, static_cast<char>(character));
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

/// Writes a vocabulary of the 256 bytes, and of further tokens that no text has.
inline void write_byte_vocabulary(gguf_writer& to, int tokens) {
  std::vector<std::string> all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(spelled_byte(byte));
  for (int more = 256; more < tokens; ++more) all.push_back("<" + std::to_string(more) + ">");
  to.set("tokenizer.ggml.model", "gpt2");
  to.set("tokenizer.ggml.pre", "default");
  to.set("tokenizer.ggml.tokens", all);
  to.set("tokenizer.ggml.token_type", std::vector<std::int32_t>(all.size(), 1));
  to.set("tokenizer.ggml.merges", std::vector<std::string>{});
}

}  // namespace detail
}  // namespace llama_cpp
