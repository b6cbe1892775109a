// Serves recall questions with a small engine, once with the full cache and once with each policy, on equal memory.
#include <fmt/core.h>

#include <fstream>
#include <iterator>

#include "../program.hpp"
#include "table.hpp"
#include "tinylm_decoder.hpp"

namespace serving {
namespace {

struct options {
  bool quick = false;
  bool check = false;
  bool json = false;
  int questions = -1;
  int blocks = -1;
  int answer = 96;
  int step_tokens = 1024;
  int drafts = 2;
  int threads = 2;
  std::uint64_t seed = 1;
  std::string weights = TINYLM_WEIGHTS_DIR;
};

/// Less than a tenth of the cache for the policy that decides once and then keeps the answer, an eighth for the one
/// that keeps deciding. A fact has 17 bytes, so the pool has a width of 15, as in the demo.
std::vector<served_policy> served() {
  return {{.name = "snapkv",
           .spec = "snapkv(window=16, pool=max:15) | budget(80)",
           .when = deciding::after_prompt,
           .kept = 80,
           .window = 16},
          {.name = "trim_kv",
           .spec = "trim_kv | budget(112)",
           .when = deciding::every_block,
           .kept = 112,
           .reads_log_betas = true}};
}

void add_to(CLI::App& app, options& to) {
  app.add_flag("--quick", to.quick, "20 questions and 160 blocks, in seconds");
  app.add_flag("--check", to.check,
               "exit 1 if a policy serves less than 3 times as many requests at once, or recalls less");
  app.add_flag("--json", to.json, "print the counts as JSON");
  app.add_option("--questions", to.questions, "requests; 120 if not given");
  app.add_option("--blocks", to.blocks, "the pool, in blocks of 16 tokens; 288 if not given");
  app.add_option("--answer", to.answer, "bytes of an answer");
  app.add_option("--step-tokens", to.step_tokens, "the most tokens of a forward");
  app.add_option("--drafts", to.drafts, "the most draft tokens of a request in a forward");
  app.add_option("--threads", to.threads, "threads of the model and of the policies");
  app.add_option("--seed", to.seed, "which questions");
  app.add_option("--weights", to.weights,
                 "folder with weights.safetensors, retention_gate.safetensors and held_out.txt");
}

void settle(options& with) {
  if (with.questions < 0) with.questions = with.quick ? 20 : 120;
  if (with.blocks < 0) with.blocks = with.quick ? 160 : 288;
  kv::expects(with.questions >= 1 && with.questions <= 10000, "serving", "--questions", with.questions, "1 to 10000");
  kv::expects(with.blocks >= 96 && with.blocks <= 100000, "serving", "--blocks", with.blocks,
              "a request needs up to 96, and a pool has at most 100000");
  kv::expects(with.answer >= 6 && with.answer <= 256, "serving", "--answer", with.answer, "6 to 256 bytes");
  kv::expects(with.step_tokens >= 64 && with.step_tokens <= 4096, "serving", "--step-tokens", with.step_tokens,
              "a forward has 64 to 4096 tokens");
  kv::expects(with.drafts >= 0 && with.drafts <= 16, "serving", "--drafts", with.drafts, "0 to 16 tokens");
  kv::expects(with.threads >= 1 && with.threads <= 256, "serving", "--threads", with.threads, "1 to 256 threads");
}

bytes read_text(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  kv::expects(file.good(), "serving", "--weights", path, "it cannot be read");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int work(options const& with) {
  bytes const text = read_text(with.weights + "/held_out.txt");
  executor exec(with.threads);
  engine_options engine{.blocks = with.blocks};
  engine.schedule.tokens_per_step = with.step_tokens;
  engine.schedule.drafts = with.drafts;
  std::vector<served_policy> const policies = served();
  std::vector<measured> rows;
  std::int64_t block_bytes = 0;
  for (int policy = -1; policy < std::ssize(policies); ++policy) {
    bool const gated = policy >= 0 && policies[static_cast<std::size_t>(policy)].reads_log_betas;
    tinylm_decoder model(exec, with.weights, engine.schedule.tokens_per_step, gated);
    block_bytes = block_pool(model.shape(), 1).block_bytes();
    auto const questions =
        workload(text, {.questions = with.questions, .answer = with.answer, .seed = with.seed}).make(policy);
    rows.push_back(serve(model, exec, engine, policies, policy, questions));
  }
  if (with.json) {
    nlohmann::json all = nlohmann::json::array();
    for (measured const& one : rows) all.push_back(as_json(one));
    fmt::print("{}\n", all.dump(1));
    return 0;
  }
  workload_options const usual;
  fmt::print(
      "tinylm, {} requests: prompts of {} bytes, answers of {}; {} blocks of {} tokens ({} MiB) for each policy\n\n",
      with.questions, usual.context, with.answer, with.blocks, block_pool::block_tokens,
      with.blocks * block_bytes >> 20);
  print_table(rows, block_bytes);
  fmt::print("\n");
  bool const met = print_ratios(rows);
  fmt::print("\n");
  for (served_policy const& one : policies) fmt::print("{:<9} {}\n", one.name, one.spec);
  return met || !with.check ? 0 : 1;
}

}  // namespace
}  // namespace serving

int main(int count, char** arguments) {
  serving::options with;
  CLI::App app("A serving engine in small: how many requests fit at once, and what they still know", "serving");
  serving::add_to(app, with);
  return examples::run_program(app, count, arguments, [&] {
    serving::settle(with);
    return serving::work(with);
  });
}
