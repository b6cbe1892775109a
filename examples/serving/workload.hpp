// SPDX-License-Identifier: Apache-2.0
// The requests of the table: recall questions, as the demo asks them, after a system prompt that all of them share.
#pragma once

#include <algorithm>
#include <demo/tasks.hpp>
#include <span>
#include <vector>

#include "request.hpp"

namespace serving {

/// Sizes in bytes, which are tinylm's tokens.
struct workload_options {
  int questions = 96;
  int context = 1024;       ///< a prompt: the system prompt, text with six facts, and a question
  int system_prompt = 192;  ///< the part that all prompts have in common
  int answer = 64;          ///< the fact, and the text that the model continues with
  std::uint64_t seed = 1;
};

/// A request, and the answer that is right.
struct question {
  request asked;
  bytes right;
};

/// Makes the requests. Every eighth document is asked about twice, every tenth request has two samples, and every
/// twelfth is cancelled while it is answered. All of them are there at the beginning.
class workload {
 public:
  static constexpr int facts = 6;

  workload(std::span<std::uint8_t const> text, workload_options const& with)
      : with_(with), tasks_(text, with.context - with.system_prompt, with.seed) {
    system_.assign(text.begin(), text.begin() + with.system_prompt);
  }

  /// The requests of a policy. The same options give the same prompts for each policy.
  [[nodiscard]] std::vector<question> make(int policy) {
    std::vector<question> all;
    for (int i = 0; i < with_.questions; ++i) {
      if (i % 8 != 1) case_ = tasks_.recall(i % facts);
      all.push_back(make_one(i, i % facts));
      all.back().asked.policy = policy;
    }
    return all;
  }

 private:
  /// The question about one of the facts of the present document: "\nset k3f9=q0zt7a\n" is asked for by "\nget k3f9=".
  [[nodiscard]] question make_one(int number, int fact) const {
    auto const line = case_.prompt.begin() + case_.facts[static_cast<std::size_t>(fact)];
    question made{.asked = {.number = number, .prompt = system_, .max_tokens = with_.answer}, .right = {}};
    bytes& prompt = made.asked.prompt;
    prompt.insert(prompt.end(), case_.prompt.begin(), case_.prompt.end());
    bytes get(line, line + key_end);
    get[1] = 'g';
    prompt.insert(prompt.end(), get.begin(), get.end());
    made.right.assign(line + key_end, line + key_end + value_bytes);
    if (number % 10 == 3) made.asked.samples = 2;
    if (number % 12 == 7) made.asked.cancelled_at = 40 + 3 * number;
    return made;
  }

  static constexpr int key_end = 10;  ///< the bytes of "\nset k3f9="
  static constexpr int value_bytes = 6;

  workload_options with_;
  demo::task_maker tasks_;
  bytes system_;
  demo::recall_case case_;
};

}  // namespace serving
