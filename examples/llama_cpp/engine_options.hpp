// SPDX-License-Identifier: Apache-2.0
// What callers of the engine give and get.
#pragma once

#include <llama.h>

#include <chrono>
#include <span>

#include "context_options.hpp"

namespace llama_cpp {

/// When the policy decides: only in `evict`, once after each prefill, or after every decode.
enum class when { by_hand, after_prefill, every_decode };

struct engine_options {
  context_options context{};
  when decide = when::after_prefill;
  bool observe_steps = true;  ///< let the policy observe decoded tokens; false for policies that observe prompts only
  int policy_threads = 1;     ///< of the policy
};

/// New tokens of a sequence: their ids, or the rows of their embeddings.
struct token_rows {
  std::span<llama_token const> tokens{};
  std::span<float const> embeddings{};  ///< [token][width of the embeddings], used if there are no ids
};

/// New tokens of one of several sequences.
struct sequence_rows {
  int sequence = 0;
  token_rows rows{};
};

/// The seconds that the last eviction took.
struct eviction_seconds {
  double decide = 0;  ///< the policy's decision
  double apply = 0;   ///< moving the kept rows together
  double cells = 0;   ///< giving the other cells back to llama.cpp
};

namespace detail {

struct decode_kind {
  bool observed = false;   ///< by the policy
  bool ends_turn = false;  ///< it is the last decode of a prefill
};

template <class Do>
void timed(double& seconds, Do const& run) {
  auto const begin = std::chrono::steady_clock::now();
  run();
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace detail
}  // namespace llama_cpp
