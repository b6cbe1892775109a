// SPDX-License-Identifier: Apache-2.0
// A model with random weights as a GGUF file: it says nothing, and takes the time of a model of its sizes.
#pragma once

#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <random>
#include <vector>

#include "gguf_writer.hpp"

namespace llama_cpp {

/// The sizes of Llama 3.2 1B.
[[nodiscard]] inline detail::model_sizes sizes_of_1b(int layers = 16) {
  return {.name = "random weights",
          .vocabulary = 128256,
          .width = 2048,
          .layers = layers,
          .query_heads = 32,
          .kv_heads = 8,
          .head_dim = 64,
          .hidden = 8192,
          .context = 131072,
          .rope_theta = 500000};
}

namespace detail {

/// Fills tensors of q8_0 with blocks of random numbers, as large as those of a model that was initialised.
class random_blocks {
 public:
  random_blocks() {
    std::mt19937 random(1);
    for (std::size_t i = 0; i < count * block; ++i) bytes_.push_back(static_cast<std::byte>(random()));
  }
  void fill(std::span<std::byte> to, int inputs) {
    ggml_fp16_t const scale = ggml_fp32_to_fp16(1.0f / (74.0f * std::sqrt(static_cast<float>(inputs))));
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(bytes_.data() + i * block, &scale, sizeof scale);  // a block begins with its scale
    for (std::size_t at = 0; at < to.size(); at += bytes_.size() - block) {
      std::size_t const some = std::min(bytes_.size() - block, to.size() - at);
      std::memcpy(to.data() + at, bytes_.data(), some);
    }
  }

 private:
  static constexpr std::size_t block = 34, count = 65537;
  std::vector<std::byte> bytes_;
};

}  // namespace detail

/// Writes a model of the architecture `llama` with random weights in q8_0 and a vocabulary of bytes.
///
/// - throws: `kvpolicy::invalid_argument` if the file cannot be written.
inline void write_random_gguf(std::filesystem::path const& to, detail::model_sizes const& c) {
  auto const parameters =
      static_cast<std::size_t>(c.width) *
      static_cast<std::size_t>(c.vocabulary +
                               c.layers * (2 * (c.query_heads + c.kv_heads) * c.head_dim + 3 * c.hidden + 2));
  detail::gguf_writer file(parameters * 34 / 32 / 4 + (std::size_t{1} << 20));
  detail::write_config(file, c);
  detail::write_byte_vocabulary(file, c.vocabulary);
  detail::random_blocks random;
  auto const add = [&](std::string const& name, int inputs, int outputs) {
    file.add(name + ".weight", GGML_TYPE_Q8_0, inputs, outputs,
             [&](std::span<std::byte> bytes) { random.fill(bytes, inputs); });
  };
  std::vector<float> const ones(static_cast<std::size_t>(c.width), 1.0f);
  add("token_embd", c.width, c.vocabulary);  // it is the output's matrix, too
  file.add("output_norm.weight", ones, c.width);
  for (int i = 0; i < c.layers; ++i) {
    std::string const layer = "blk." + std::to_string(i) + ".";
    for (char const* norm : {"attn_norm", "ffn_norm"}) file.add(layer + norm + ".weight", ones, c.width);
    add(layer + "attn_q", c.width, c.query_heads * c.head_dim);
    for (char const* name : {"attn_k", "attn_v"}) add(layer + name, c.width, c.kv_heads * c.head_dim);
    add(layer + "attn_output", c.query_heads * c.head_dim, c.width);
    for (char const* name : {"ffn_gate", "ffn_up"}) add(layer + name, c.width, c.hidden);
    add(layer + "ffn_down", c.hidden, c.width);
  }
  file.write(to);
}

}  // namespace llama_cpp
