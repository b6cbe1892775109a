// SPDX-License-Identifier: Apache-2.0
// tinylm's weights as a GGUF file that llama.cpp reads, and its n-gram embeddings, which llama.cpp takes as a batch.
#pragma once

#include <bit>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "gguf_writer.hpp"
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

/// The sizes of tinylm.
[[nodiscard]] inline model_sizes sizes_of(tinylm::config const& c) {
  return {.name = "tinylm",
          .vocabulary = c.vocab,
          .width = c.width,
          .layers = c.layers,
          .query_heads = c.q_heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .hidden = c.hidden,
          .context = 1280,
          .rope_theta = c.rope_theta,
          .norm_eps = c.norm_eps};
}

inline void write_config(gguf_writer& to, tinylm::config const& c, std::string const& architecture = "llama") {
  write_config(to, sizes_of(c), architecture);
}

inline void write_vocabulary(gguf_writer& to, gguf_options const& how) {
  if (!how.byte_vocabulary) return to.set("tokenizer.ggml.model", "no_vocab");
  write_byte_vocabulary(to, 256);
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
