// SPDX-License-Identifier: Apache-2.0
// Runs a model of llama.cpp with its cache under a policy. docs/llama_cpp.md
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "llama_engine.hpp"
#include "model_file.hpp"
#include "prompt_tokens.hpp"
#include "recall.hpp"

namespace {

namespace kv = kvpolicy;

struct options {
  std::string model;
  std::optional<std::string> policy;
  std::string prompt = "The KV cache of a language model holds";
  std::string prompt_file;
  std::string write_tinylm;
  int tokens = 128;
  int questions = 60;
  std::string type = "f16";
  bool no_flash = false;
  bool compare = false;
  bool every_token = false;
  bool verbose = false;
  llama_cpp::context_options context{.cells = 0};
  int policy_threads = 1;
};

using seconds = std::chrono::duration<double>;
double since(std::chrono::steady_clock::time_point begin) {
  return seconds(std::chrono::steady_clock::now() - begin).count();
}

/// What a run measured. Without questions none is right.
using measured = llama_cpp::answers;

void print_table(std::vector<std::pair<std::string, measured>> const& rows, int questions) {
  std::size_t width = 6;
  for (auto const& [policy, one] : rows) width = std::max(width, policy.size());
  fmt::print("\n{:<{}}  {:>9}  {:>8}  {:>15}", "policy", width, "prefill s", "tokens/s", "rows read/token");
  fmt::print("{}\n", questions > 0 ? "     right" : "");
  for (auto const& [policy, one] : rows) {
    auto const steps = static_cast<double>(std::max<std::int64_t>(1, one.steps));
    fmt::print("{:<{}}  {:>9.2f}  {:>8.1f}  {:>15.0f}", policy, width, one.prefill_seconds,
               one.steps > 0 ? steps / one.decode_seconds : 0.0, static_cast<double>(one.rows_read) / steps);
    if (questions > 0) fmt::print("  {} of {}", one.right, questions);
    fmt::print("\n");
  }
}

llama_cpp::engine_options engine_options(options const& with, int cells) {
  llama_cpp::engine_options made{.context = with.context};
  made.context.cells = with.context.cells > 0 ? with.context.cells : cells;
  made.context.flash_attention = !with.no_flash;
  ggml_type const type = with.type == "f32" ? GGML_TYPE_F32 : with.type == "q8_0" ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
  made.context.type_k = made.context.type_v = type;
  made.context.keep_keys = true;
  made.decide = with.every_token ? llama_cpp::when::every_decode : llama_cpp::when::after_prefill;
  made.policy_threads = with.policy_threads;
  return made;
}

/// Refuses a cache that would be full in the middle of the answer. A policy that decides after every token frees cells
/// all the time.
void check_cells(options const& with, char const* what, int tokens, int free) {
  kv::expects(with.every_token || tokens <= free, "kvllama", "--cells", with.context.cells,
              [&] { return fmt::format("{} takes {} cells, and {} are free", what, tokens, free); });
}

/// Continues a prompt greedily, and prints the text while it arises. `kept` gets the number of the prompt's tokens that
/// each lane keeps. With `whole` the cache must hold prompt and answer.
measured generate(llama_model* model, kv::any_policy const& policy, std::vector<llama_token> const& prompt,
                  options const& with, bool whole, int& kept) {
  llama_vocab const* const vocabulary = llama_model_get_vocab(model);
  int const read = static_cast<int>(prompt.size());
  llama_cpp::engine<kv::any_policy> engine(model, policy, engine_options(with, read + with.tokens));
  check_cells(with, "the prompt", read, engine.free_count());
  kv::expects(!whole || read + with.tokens <= engine.free_count(), "kvllama", "--cells", with.context.cells, [&] {
    return fmt::format("the full cache takes {} cells for prompt and answer, and {} are free", read + with.tokens,
                       engine.free_count());
  });
  measured made;
  auto begin = std::chrono::steady_clock::now();
  std::span<float const> logits = engine.prefill(0, {.tokens = prompt});
  made.prefill_seconds = since(begin);
  kept = engine.count(0);
  check_cells(with, "the answer", with.tokens, engine.free_count());
  begin = std::chrono::steady_clock::now();
  for (int i = 0; i < with.tokens; ++i) {
    auto const token = static_cast<llama_token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (llama_vocab_is_eog(vocabulary, token)) break;
    std::string const piece = llama_cpp::text_of(vocabulary, token);
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
    logits = engine.step(0, {.tokens = std::span(&token, 1)});
    ++made.steps;
  }
  made.decode_seconds = since(begin);
  made.rows_read = engine.rows_read();
  fmt::print("\n");
  return made;
}

std::string read_file(std::string const& path) {
  kv::expects(!std::filesystem::is_directory(path), "kvllama", "--file", path, "it is a folder");
  std::ifstream file(path, std::ios::binary);
  kv::expects(file.good(), "kvllama", "--file", path, "it cannot be read");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void run_model(options const& with) {
  kv::any_policy const policy = kv::parse(with.policy.value_or("snapkv | budget(1024)"));
  llama_cpp::model_pointer const model =
      llama_cpp::load_model("kvllama", with.model, "llama.cpp cannot load it; --verbose shows its messages");
  std::vector<llama_token> const prompt =
      llama_cpp::tokens_of("kvllama", llama_model_get_vocab(model.get()),
                           with.prompt_file.empty() ? with.prompt : read_file(with.prompt_file));
  constexpr int most = 1 << 24;
  kv::expects(
      prompt.size() <= static_cast<std::size_t>(most), "kvllama", "--prompt",
      [&] { return fmt::format("{} tokens", prompt.size()); },
      [&] { return fmt::format("a cache has at most {} cells", most); });
  int const trained = llama_model_n_ctx_train(model.get());
  if (int const all = static_cast<int>(prompt.size()) + with.tokens; all > trained) {
    fmt::print(stderr, "kvllama: prompt and answer have {} tokens, but the model was trained with {}\n", all, trained);
  }
  std::vector<std::pair<std::string, measured>> rows;
  int kept = 0;
  if (with.compare) {
    fmt::print("[the full cache]\n");
    rows.emplace_back("full", generate(model.get(), kv::any_policy(), prompt, with, true, kept));
    fmt::print("\n[{}]\n", to_string(policy));
  }
  rows.emplace_back(to_string(policy), generate(model.get(), policy, prompt, with, false, kept));
  fmt::print("\nprompt: {} tokens, of which the policy keeps {}\n", prompt.size(), kept);
  print_table(rows, 0);
}

/// Asks tinylm's recall questions: facts in prompts of 1,024 bytes.
measured ask(llama_model* model, tinylm::weights const& weights, kv::any_policy const& policy, options const& with) {
  llama_cpp::engine<kv::any_policy> engine(model, policy, engine_options(with, 1280));
  measured made;
  for (demo::recall_case const& one : llama_cpp::recall_cases(with.questions))
    llama_cpp::ask(engine, weights, one, made, [] {});
  return made;
}

void run_tinylm(options const& with) {
  kv::any_policy const policy = kv::parse(with.policy.value_or("snapkv(window=16, pool=max:15) | budget(64)"));
  tinylm::weights const weights = tinylm::read_weights(std::string(TINYLM_WEIGHTS_DIR) + "/weights.safetensors");
  if (!with.write_tinylm.empty()) {
    llama_cpp::write_gguf(with.write_tinylm, weights, {.byte_vocabulary = true});
    fmt::print("{} has tinylm's weights without its tables of n-grams\n", with.write_tinylm);
    return;
  }
  auto const model = llama_cpp::load_written(
      "kvllama", [&](std::filesystem::path const& file) { llama_cpp::write_gguf(file, weights); });
  fmt::print("tinylm in llama.cpp, {} recall questions about prompts of 1,024 bytes\n", with.questions);
  std::vector<std::pair<std::string, measured>> rows;
  rows.emplace_back("full", ask(model.get(), weights, kv::any_policy(), with));
  rows.emplace_back(to_string(policy), ask(model.get(), weights, policy, with));
  print_table(rows, with.questions);
}

std::optional<options> read_options(int argc, char** argv, int& status) {
  options made;
  made.context.cells = 0;
  CLI::App app("Runs a GGUF model with its KV cache under a policy. Without a model it asks tinylm recall questions.");
  auto* const model = app.add_option("-m,--model", made.model, "a GGUF file with a plain cache");
  app.add_option("--policy", made.policy,
                 "the policy; by default \"snapkv | budget(1024)\" for a model, and a smaller one for tinylm");
  auto* const prompt = app.add_option("-p,--prompt", made.prompt, "the prompt, which is read without a chat template")
                           ->capture_default_str()
                           ->needs(model);
  app.add_option("-f,--file", made.prompt_file, "a file whose text is the prompt")->needs(model)->excludes(prompt);
  app.add_option("-n,--tokens", made.tokens, "tokens to generate")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20))
      ->needs(model);
  app.add_option("-c,--cells", made.context.cells,
                 "tokens that the cache holds, rounded up to 256; by default prompt and answer")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--chunk", made.context.chunk, "tokens of a decode in the prefill")->capture_default_str();
  app.add_option("-t,--threads", made.context.threads, "threads of llama.cpp; 0 for all cores")->capture_default_str();
  app.add_option("--policy-threads", made.policy_threads, "threads of the policy")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--cache-type", made.type, "element type of the cache")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "f16", "q8_0"}));
  app.add_flag("--no-flash", made.no_flash, "without flash attention");
  app.add_flag("--compare", made.compare, "run the full cache, too")->needs(model);
  app.add_flag("--every-token", made.every_token, "decide after every token, not once after the prompt");
  app.add_option("--questions", made.questions, "recall questions for tinylm")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000))
      ->excludes(model);
  app.add_option("--write-tinylm", made.write_tinylm, "write tinylm's weights to this file, and end")->excludes(model);
  app.add_flag("--verbose", made.verbose, "show the messages of llama.cpp");
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    status = app.exit(error);
    return std::nullopt;
  }
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  int status = 0;
  std::optional<options> const with = read_options(argc, argv, status);
  if (!with) return status;
  if (!with->verbose) llama_cpp::be_quiet();
  try {
    with->model.empty() ? run_tinylm(*with) : run_model(*with);
  } catch (std::exception const& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
