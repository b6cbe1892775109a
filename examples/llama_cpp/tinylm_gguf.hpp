// tinylm's weights as a GGUF file that llama.cpp reads, and its n-gram embeddings, which llama.cpp takes as a batch.
#pragma once

#include <ggml.h>
#include <gguf.h>

#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tinylm/weights.hpp"

namespace llama_cpp {

namespace kv = kvpolicy;

struct gguf_options {
  bool byte_vocabulary =
      false;  ///< tokens are the bytes of a text, as GPT-2 spells them; else the file has no vocabulary
};

namespace detail {

/// The rows of a matrix of queries or keys in the order of llama.cpp's RoPE, which turns channels 2i and 2i + 1 as a
/// pair. tinylm turns channels i and i + D / 2.
inline std::vector<float> paired(std::span<float const> matrix, int heads, int dims, int width) {
  std::vector<float> made(matrix.size());
  for (int row = 0; row < heads * dims; ++row) {
    int const in_head = row % dims;
    int const from = row - in_head + in_head / 2 + in_head % 2 * (dims / 2);
    std::copy_n(matrix.data() + std::ptrdiff_t{from} * width, width, made.data() + std::ptrdiff_t{row} * width);
  }
  return made;
}

/// The file that is being made, and the memory of its tensors.
class gguf_writer {
 public:
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

/// Writes the sizes of a model under the names of an architecture of llama.cpp.
inline void write_config(gguf_writer& to, tinylm::config const& c, std::string const& architecture = "llama") {
  to.set("general.architecture", architecture.c_str());
  to.set("general.name", "tinylm");
  auto const set = [&](char const* key, auto value) { to.set((architecture + "." + key).c_str(), value); };
  set("vocab_size", c.vocab);
  set("context_length", 1280);
  set("embedding_length", c.width);
  set("block_count", c.layers);
  set("feed_forward_length", c.hidden);
  set("attention.head_count", c.q_heads);
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

inline void write_vocabulary(gguf_writer& to, gguf_options const& how) {
  if (!how.byte_vocabulary) return to.set("tokenizer.ggml.model", "no_vocab");
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(spelled_byte(byte));
  to.set("tokenizer.ggml.model", "gpt2");
  to.set("tokenizer.ggml.pre", "default");
  to.set("tokenizer.ggml.tokens", tokens);
  to.set("tokenizer.ggml.token_type", std::vector<std::int32_t>(256, 1));
  to.set("tokenizer.ggml.merges", std::vector<std::string>{});
}

}  // namespace detail

/// Writes tinylm's weights as a model of the architecture `llama`. The file has the embeddings of single bytes. The
/// rows of n-grams are added to them in `tinylm_embeddings`, because llama.cpp has no such tables.
///
/// - throws: `kvpolicy::invalid_argument` if the file cannot be written.
inline void write_gguf(std::filesystem::path const& to, tinylm::weights const& from, gguf_options const& how = {}) {
  tinylm::config const& c = from.about;
  std::size_t floats = 0;
  from.for_each([&](std::vector<float> const& one) { floats += one.size(); });
  detail::gguf_writer file(floats);
  detail::write_config(file, c);
  detail::write_vocabulary(file, how);
  file.add("token_embd.weight", from.embedding, c.width);
  file.add("output_norm.weight", from.norm, c.width);
  file.add("output.weight", from.head, c.width);
  auto const queries = static_cast<std::size_t>(c.q_heads * c.head_dim * c.width);
  auto const keys = static_cast<std::size_t>(c.kv_heads * c.head_dim * c.width);
  auto const inner = static_cast<std::size_t>(c.hidden * c.width);
  for (int i = 0; i < c.layers; ++i) {
    tinylm::block_weights const& block = from.blocks[static_cast<std::size_t>(i)];
    std::span<float const> const qkv = block.qkv, gate_up = block.gate_up;
    auto const add = [&](char const* name, std::span<float const> values, int inputs) {
      file.add("blk." + std::to_string(i) + "." + name + ".weight", values, inputs);
    };
    add("attn_norm", block.attention_norm, c.width);
    add("attn_q", detail::paired(qkv.first(queries), c.q_heads, c.head_dim, c.width), c.width);
    add("attn_k", detail::paired(qkv.subspan(queries, keys), c.kv_heads, c.head_dim, c.width), c.width);
    add("attn_v", qkv.subspan(queries + keys), c.width);
    add("attn_output", block.wo, c.q_heads * c.head_dim);
    add("ffn_norm", block.mlp_norm, c.width);
    add("ffn_gate", gate_up.first(inner), c.width);
    add("ffn_up", gate_up.subspan(inner), c.width);
    add("ffn_down", block.down, c.hidden);
  }
  file.write(to);
}

/// The embeddings [byte][width] of the bytes from `position` on, as tinylm makes them: the row of the byte, and of each
/// table the row to which it and the bytes before it hash. `text` begins at the start of the sequence.
[[nodiscard]] inline std::vector<float> tinylm_embeddings(tinylm::weights const& from,
                                                          std::span<std::uint8_t const> text, int position) {
  tinylm::config const& c = from.about;
  int const part = c.width / c.ngrams;
  int const bits = std::countr_zero(static_cast<unsigned>(c.ngram_buckets));
  std::vector<float> made;
  for (int at = position; at < std::ssize(text); ++at) {
    std::uint32_t hash = text[static_cast<std::size_t>(at)];
    auto const row = from.embedding.begin() + static_cast<std::ptrdiff_t>(hash) * c.width;
    made.insert(made.end(), row, row + c.width);
    float* const x = made.data() + made.size() - static_cast<std::size_t>(c.width);
    for (int i = 0; i < c.ngrams; ++i) {
      std::uint32_t const past = at > i ? text[static_cast<std::size_t>(at - i - 1)] : 0;
      hash = hash * 257u + past + 1u;
      auto const bucket = static_cast<std::ptrdiff_t>((hash * 2654435761u) >> (32 - bits));
      float const* const table = from.ngrams[static_cast<std::size_t>(i)].data() + bucket * part;
      for (int d = 0; d < part; ++d) x[i * part + d] += table[d];
    }
  }
  return made;
}

}  // namespace llama_cpp
