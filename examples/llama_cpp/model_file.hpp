// SPDX-License-Identifier: Apache-2.0
// Models of llama.cpp, as the programs of this folder load them.
#pragma once

#include <fmt/core.h>
#include <llama.h>
#include <unistd.h>

#include <filesystem>
#include <kvpolicy/kvpolicy.hpp>
#include <memory>

namespace llama_cpp {

namespace kv = kvpolicy;

struct free_model {
  void operator()(llama_model* one) const { llama_model_free(one); }
};
using model_pointer = std::unique_ptr<llama_model, free_model>;

/// Loads a GGUF file into the host's memory.
///
/// - throws: `kvpolicy::invalid_argument` if there is no such file, or llama.cpp cannot load it.
[[nodiscard]] inline model_pointer load_model(char const* program, std::filesystem::path const& file,
                                              char const* failed = "llama.cpp cannot load it") {
  std::error_code ignored;
  kv::expects(!std::filesystem::is_directory(file, ignored), program, "model", file.string(), "it is a folder");
  kv::expects(std::filesystem::is_regular_file(file, ignored), program, "model", file.string(),
              "there is no such file");
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;  // the policy's executor is the host
  model_pointer made(llama_model_load_from_file(file.c_str(), params));
  kv::expects(made != nullptr, program, "model", file.string(), failed);
  return made;
}

/// Lets write(path) write a file, loads it, and removes it.
template <class Write>
[[nodiscard]] model_pointer load_written(char const* program, Write const& write) {
  auto const file = std::filesystem::temp_directory_path() / fmt::format("{}_{}.gguf", program, ::getpid());
  struct removed {
    std::filesystem::path const& file;
    ~removed() {
      std::error_code ignored;
      std::filesystem::remove(file, ignored);  // a model that is loaded has mapped it
    }
  } const at_the_end{file};
  write(file);
  return load_model(program, file);
}

/// Hides the messages of llama.cpp.
inline void be_quiet() {
  llama_log_set([](ggml_log_level, char const*, void*) {}, nullptr);
}

}  // namespace llama_cpp
