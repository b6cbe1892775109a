// SPDX-License-Identifier: Apache-2.0
// Asks the demo's recall questions of tinylm's weights in two engines, its own decoder and llama.cpp, under the same
// policies, and writes what they answered and kept as JSON. tools/engines/table.py makes a table of it.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../tinylm/session.hpp"
#include "model_file.hpp"
#include "recall.hpp"

namespace {

namespace kv = kvpolicy;
using nlohmann::json;

constexpr int bound = 1536;

/// What one engine did under one policy.
struct run {
  char const* engine;
  std::string policy;
  int right = 0;
  std::int64_t steps = 0;
  std::int64_t rows = 0;  ///< cache rows that a layer read, of all steps
  double seconds = 0;     ///< of the steps
  json kept = json::array();

  [[nodiscard]] json as_json() const {
    return {{"engine", engine}, {"policy", policy},   {"right", right}, {"steps", steps},
            {"rows", rows},     {"seconds", seconds}, {"kept", kept}};
  }
};

run ask_tinylm(tinylm::model& lm, tinylm::kv_pool& pool, std::string const& policy,
               std::vector<demo::recall_case> const& questions) {
  kv::host_executor exec;
  kv::any_policy const parsed = kv::parse(policy);
  run made{.engine = "tinylm", .policy = policy};
  for (demo::recall_case const& one : questions) {
    tinylm::session session(lm, exec, pool, parsed, {.bound = bound});
    session.prefill(llama_cpp::asked(one));
    json lanes = json::array();
    kv::lanes const all = session.view().lanes;
    for (int i = 0; i < all.size(); ++i) {
      int const* const row = all.position.row(all.at(i));
      lanes.push_back(std::vector<int>(row, row + *all.count.row(all.at(i))));
    }
    made.kept.push_back(lanes);
    std::int64_t const read = session.counters().entries_read, steps = session.counters().steps;
    auto const begin = std::chrono::steady_clock::now();
    std::string const said = session.generate(static_cast<int>(one.answer.size()));
    made.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    made.right += demo::bytes(said.begin(), said.end()) == one.answer ? 1 : 0;
    made.steps += session.counters().steps - steps;
    made.rows += (session.counters().entries_read - read) / all.size();
  }
  return made;
}

run ask_llama(llama_model* model, tinylm::weights const& weights, std::string const& policy,
              std::vector<demo::recall_case> const& questions) {
  llama_cpp::engine<kv::any_policy> engine(
      model, kv::parse(policy),
      {.context = {
           .cells = bound, .chunk = 256, .type_k = GGML_TYPE_F32, .type_v = GGML_TYPE_F32, .flash_attention = false}});
  run made{.engine = "llama.cpp", .policy = policy};
  llama_cpp::answers said;
  for (demo::recall_case const& one : questions) {
    llama_cpp::ask(engine, weights, one, said, [&] {
      json lanes = json::array();
      for (int layer = 0; layer < engine.shape().layers; ++layer) {
        for (int head = 0; head < engine.shape().kv_heads; ++head) {
          auto const kept = engine.positions({0, layer, head});
          lanes.push_back(std::vector<int>(kept.begin(), kept.end()));
        }
      }
      made.kept.push_back(lanes);
    });
  }
  made.right = said.right;
  made.steps = said.steps;
  made.rows = said.rows_read;
  made.seconds = said.decode_seconds;
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Asks recall questions of tinylm's own decoder and of llama.cpp, under the same policies");
  int questions = 60;
  std::string out;
  std::vector<std::string> policies;
  app.add_option("--questions", questions, "how many")->check(CLI::Range(1, 10000));
  app.add_option("--out", out, "the JSON file to write")->required();
  app.add_option("--policy", policies, "a policy; repeatable")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    tinylm::weights const weights = tinylm::read_weights(std::string(TINYLM_WEIGHTS_DIR) + "/weights.safetensors");
    tinylm::model lm(weights);
    tinylm::kv_pool pool(lm.about().shape(), 4096);
    llama_cpp::be_quiet();
    auto const model = llama_cpp::load_written(
        "recall_engines", [&](std::filesystem::path const& file) { llama_cpp::write_gguf(file, weights); });
    std::vector<demo::recall_case> const all = llama_cpp::recall_cases(questions);
    json made = json::array();
    for (std::string const& policy : policies) static_cast<void>(kv::parse(policy));
    for (std::string const& policy : policies) {
      for (run const& one : {ask_tinylm(lm, pool, policy, all), ask_llama(model.get(), weights, policy, all)}) {
        fmt::print(stderr, "{:<10} {:<48} {} of {}\n", one.engine, one.policy, one.right, questions);
        made.push_back(one.as_json());
      }
    }
    std::ofstream(out) << made.dump() << '\n';
  } catch (std::exception const& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
