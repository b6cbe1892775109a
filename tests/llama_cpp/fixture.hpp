// SPDX-License-Identifier: Apache-2.0
// What the tests of llama.cpp share: tinylm's weights as a model of llama.cpp, and texts.
#pragma once

#include <doctest/doctest.h>
#include <llama.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "llama_cpp/llama_engine.hpp"
#include "llama_cpp/tinylm_gguf.hpp"
#include "tinylm/fixture.hpp"

namespace llama_cpp_test {

namespace kv = kvpolicy;
using bytes = std::vector<std::uint8_t>;

struct free_model {
  void operator()(llama_model* one) const { llama_model_free(one); }
};
using model_pointer = std::unique_ptr<llama_model, free_model>;

/// A file that is gone when the program ends.
struct temporary_file {
  temporary_file()
      : path(std::filesystem::temp_directory_path() / ("kvpolicy_llama_cpp_" + std::to_string(::getpid()) + ".gguf")) {}
  ~temporary_file() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
  std::filesystem::path path;
};

inline model_pointer load_file(std::filesystem::path const& file) {
  llama_log_set([](ggml_log_level, char const*, void*) {}, nullptr);
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  params.load_mode = LLAMA_LOAD_MODE_NONE;
  model_pointer made(llama_model_load_from_file(file.c_str(), params));
  REQUIRE(made != nullptr);
  return made;
}
inline model_pointer load(tinylm::weights const& from) {
  temporary_file const file;
  llama_cpp::write_gguf(file.path, from);
  return load_file(file.path);
}

/// tinylm in llama.cpp, loaded once.
inline llama_model* model() {
  static model_pointer const one = load(tinylm_test::fixture::get().lm.parameters());
  return one.get();
}

/// Options with which llama.cpp computes what tinylm does: float32 and no flash attention.
inline llama_cpp::engine_options exact(int cells = 1536, int chunk = 256, int sequences = 1) {
  return {.context = {.cells = cells,
                      .sequences = sequences,
                      .chunk = chunk,
                      .threads = 2,
                      .type_k = GGML_TYPE_F32,
                      .type_v = GGML_TYPE_F32,
                      .flash_attention = false},
          .decide = llama_cpp::when::after_prefill,
          .policy_threads = 1};
}

/// A sequence of an engine that reads bytes as tinylm does.
template <class Engine>
struct reader {
  Engine& engine;
  int sequence = 0;
  bytes text{};

  template <class Visit>
  std::vector<float> prefill(std::span<std::uint8_t const> more, Visit const& visit) {
    return as_vector(engine.prefill(sequence, {.tokens = {}, .embeddings = add(more)}, visit));
  }
  std::vector<float> prefill(std::span<std::uint8_t const> more) {
    return as_vector(engine.prefill(sequence, {.tokens = {}, .embeddings = add(more)}));
  }
  std::vector<float> step(std::uint8_t byte) {
    return as_vector(engine.step(sequence, {.tokens = {}, .embeddings = add({&byte, 1})}));
  }
  /// Generates greedily after a prefill whose last logits are given.
  std::string generate(int length, std::vector<float> logits) {
    std::string said;
    for (int i = 0; i < length; ++i) {
      auto const byte = static_cast<std::uint8_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      said += static_cast<char>(byte);
      if (i + 1 < length) logits = step(byte);
    }
    return said;
  }
  std::vector<float> const& add(std::span<std::uint8_t const> more) {
    int const position = static_cast<int>(text.size());
    text.insert(text.end(), more.begin(), more.end());
    rows_ = llama_cpp::tinylm_embeddings(tinylm_test::fixture::get().lm.parameters(), text, position);
    return rows_;
  }

  static std::vector<float> as_vector(std::span<float const> from) { return {from.begin(), from.end()}; }
  std::vector<float> rows_{};
};

}  // namespace llama_cpp_test
