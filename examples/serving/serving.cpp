// SPDX-License-Identifier: Apache-2.0
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
  int mebibytes = -1;
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
  return {{.name = "full", .spec = "", .when = deciding::never},
          {.name = "snapkv",
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
  app.add_flag("--quick", to.quick, "20 questions and 10 MiB, in seconds");
  app.add_flag("--check", to.check,
               "exit 1 if a policy serves less than 3 times as many requests at once, or recalls less");
  app.add_flag("--json", to.json, "print the counts as JSON");
  app.add_option("--questions", to.questions, "requests; 120 if not given");
  app.add_option("--memory", to.mebibytes, "all that an engine may hold, in MiB; 18 if not given");
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
  if (with.mebibytes < 0) with.mebibytes = with.quick ? 10 : 18;
  kv::expects(with.questions >= 1 && with.questions <= 10000, "serving", "--questions", with.questions, "1 to 10000");
  kv::expects(with.mebibytes >= 10 && with.mebibytes <= 8192, "serving", "--memory", with.mebibytes,
              "an engine holds 10 to 8192 MiB");
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

/// The engine of a policy: as many slots as its memory can have requests at once.
///
/// The full cache has wide slots only. A policy has one, in which prompts are read, because one is read at a time. Its
/// narrow slots have room for what it keeps and what comes before it decides again.
engine_options options_for(served_policy const& policy, options const& with, workload_options const& asked) {
  auto const whole = [](int tokens) { return blocks_for(tokens) * block_pool::block_tokens; };
  int const longest = asked.context + with.answer;
  int const more = policy.when == deciding::every_block ? block_pool::block_tokens + with.drafts : with.answer;
  int const own = blocks_for(asked.context - asked.system_prompt);  // the others are shared by all requests
  int const blocks = 16 * with.mebibytes;                           // of 64 KiB
  engine_options made;
  made.schedule.tokens_per_step = with.step_tokens;
  made.schedule.drafts = with.drafts;
  made.schedule.swap_blocks = 0;  // it would be taken from the pool
  made.slots = {.wide = blocks / own + 1, .wide_bound = whole(longest)};
  if (policy.when == deciding::never) return made;
  made.slots.wide = made.schedule.prefills_at_once;
  made.slots.narrow = (blocks - blocks_for(asked.context)) / blocks_for(policy.kept);
  made.slots.narrow_bound = whole(policy.kept + more);
  return made;
}

measured measure(served_policy const& policy, options const& with, bytes const& text) {
  workload_options const asked{.questions = with.questions, .answer = with.answer, .seed = with.seed};
  bool const is_full = policy.when == deciding::never;
  engine_options const engine = options_for(policy, with, asked);
  executor exec(with.threads);
  tinylm_decoder model(exec, with.weights, with.step_tokens, policy.reads_log_betas, policy.window * engine.slots.wide);
  auto const questions = workload(text, asked).make(is_full ? -1 : 0);
  auto const policies = is_full ? std::vector<served_policy>() : std::vector<served_policy>{policy};
  return serve(model, exec, engine, std::int64_t{with.mebibytes} << 20, policies, questions);
}

int work(options const& with) {
  bytes const text = read_text(with.weights + "/held_out.txt");
  std::vector<measured> rows;
  for (served_policy const& policy : served()) rows.push_back(measure(policy, with, text));
  if (with.json) {
    nlohmann::json all = nlohmann::json::array();
    for (measured const& one : rows) all.push_back(as_json(one));
    fmt::print("{}\n", all.dump(1));
    return 0;
  }
  workload_options const usual;
  fmt::print(
      "tinylm, {} requests: prompts of {} bytes, answers of {}; {} MiB for each policy, all that it holds counted\n\n",
      with.questions, usual.context, with.answer, with.mebibytes);
  print_table(rows);
  fmt::print("\n");
  print_memory(rows, std::int64_t{with.mebibytes} << 20);
  fmt::print("\n");
  bool const met = print_ratios(rows);
  fmt::print("\n");
  for (measured const& one : rows) fmt::print("{:<9} {}\n", one.name, one.spec);
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
