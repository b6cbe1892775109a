// SPDX-License-Identifier: Apache-2.0
// What a client asks for, and what it gets.
#pragma once

#include <cstdint>
#include <vector>

namespace serving {

using bytes = std::vector<std::uint8_t>;

/// A request: a prompt, and how to continue it.
struct request {
  int number = 0;         ///< unique; the seed of a seeded score or a sample follows from it
  bytes prompt;           ///< at least one byte
  int max_tokens = 64;    ///< bytes of the answer
  int samples = 1;        ///< continuations of the same prompt (n in most interfaces): the first is greedy
  int policy = -1;        ///< the index of one of the engine's policies; -1: the full cache
  int arrives = 0;        ///< the step at which the engine sees it
  int cancelled_at = -1;  ///< the step at which the client goes away; -1: it stays
};

enum class outcome { finished, cancelled };

/// One continuation of a request.
struct answer {
  int number = 0;  ///< of the request
  int sample = 0;
  outcome how = outcome::finished;
  bytes text;            ///< without the prompt
  int preemptions = 0;   ///< how often it had to give its blocks back
  int recomputed = -1;   ///< the length of the answer when it was last preempted and computed again; -1: never
  int hit_tokens = 0;    ///< tokens of its prompt that were found in the prefix cache, in all prefills
  int asked_tokens = 0;  ///< tokens of its prompt that could have been found
};

}  // namespace serving
