// SPDX-License-Identifier: Apache-2.0
// The demo's recall questions, asked of tinylm's weights in llama.cpp.
#pragma once

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <vector>

#include "../demo/tasks.hpp"
#include "llama_engine.hpp"
#include "tinylm_gguf.hpp"

namespace llama_cpp {

namespace kv = kvpolicy;

/// Questions about facts in prompts of so many bytes. They are the same in every run.
[[nodiscard]] inline std::vector<demo::recall_case> recall_cases(int questions, int context = 1024) {
  std::ifstream file(std::string(TINYLM_WEIGHTS_DIR) + "/held_out.txt", std::ios::binary);
  demo::bytes const text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  demo::task_maker tasks(text, context, 7);
  std::vector<demo::recall_case> made;
  for (int i = 0; i < questions; ++i) made.push_back(tasks.recall(i % 6));
  return made;
}

/// The prompt of a question, with the question at its end.
[[nodiscard]] inline demo::bytes asked(demo::recall_case const& one) {
  demo::bytes all = one.prompt;
  all.insert(all.end(), one.question.begin(), one.question.end());
  return all;
}

/// What an engine answered.
struct answers {
  int right = 0;
  std::int64_t steps = 0;      ///< decoded tokens
  std::int64_t rows_read = 0;  ///< cache rows of a layer that they read
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

/// Asks a question in sequence 0, which it begins anew, and adds the answer to `to`. After the prefill it calls
/// after_prefill().
template <class Engine, class Visit>
void ask(Engine& engine, tinylm::weights const& weights, demo::recall_case const& one, answers& to,
         Visit const& after_prefill) {
  demo::bytes text = asked(one);
  engine.reset(0);
  auto const seconds_since = [](std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  auto begin = std::chrono::steady_clock::now();
  std::span<float const> logits = engine.prefill(0, {.tokens = {}, .embeddings = tinylm_embeddings(weights, text, 0)});
  to.prefill_seconds += seconds_since(begin);
  after_prefill();
  std::int64_t const read = engine.rows_read();
  begin = std::chrono::steady_clock::now();
  demo::bytes said;
  while (true) {
    said.push_back(static_cast<std::uint8_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    if (said.size() == one.answer.size()) break;
    text.push_back(said.back());
    auto const row = tinylm_embeddings(weights, text, static_cast<int>(text.size()) - 1);
    logits = engine.step(0, {.tokens = {}, .embeddings = row});
    ++to.steps;
  }
  to.decode_seconds += seconds_since(begin);
  to.rows_read += engine.rows_read() - read;
  to.right += said == one.answer ? 1 : 0;
}

}  // namespace llama_cpp
