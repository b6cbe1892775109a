// SPDX-License-Identifier: Apache-2.0
// One continuation of a request while the engine works on it.
#pragma once

#include <kvpolicy/kvpolicy.hpp>
#include <memory>
#include <optional>
#include <random>

#include "prefix_cache.hpp"
#include "request.hpp"
#include "slot_tables.hpp"

namespace serving {

using executor = kv::host_executor;

/// A sequence outside of the pool, while it is swapped out.
struct swapped_sequence {
  std::vector<std::byte> saved;  ///< as `kv::save` wrote them
  int blocks = 0;                ///< that it needs when it comes back
};

/// A sequence: its text, and what it holds. `text` is the prompt and the answer so far. The keys and values of its
/// first `computed` tokens are in the cache or were there before a policy dropped some of them. The difference is what
/// the next forwards compute: one token of a sequence that decodes, and more of one that is read or read again.
struct sequence {
  std::shared_ptr<request const> from;
  answer result;
  bytes text;
  int computed = 0;
  int num_drafts = 0;        ///< of the forward that is under way, at the end of `text`
  bool decided = false;      ///< its policy has decided, so that its entries are no longer those of the text
  bool forked = false;       ///< its other samples have been started
  bool published = false;    ///< its prompt is in the prefix cache, or was when it was read
  width kind = width::wide;  ///< of its slot
  int slot = -1;
  std::vector<int> blocks;  ///< in the order of its entries
  std::vector<int> spares;  ///< blocks that the copies of the next decision will take
  prefix_cache::node* locked = nullptr;
  std::optional<swapped_sequence> swapped;
  std::mt19937_64 random;

  /// What a seeded score and the sampling depend on.
  [[nodiscard]] int seed() const { return 16 * from->number + result.sample; }
  [[nodiscard]] int length() const { return static_cast<int>(text.size()); }
  [[nodiscard]] int prompt_tokens() const { return static_cast<int>(from->prompt.size()); }
  [[nodiscard]] int answered() const { return length() - prompt_tokens(); }
  [[nodiscard]] int remaining() const { return from->max_tokens - answered(); }
  [[nodiscard]] int to_compute() const { return length() - computed; }
  [[nodiscard]] bool is_prefilling() const { return to_compute() - num_drafts > 1; }
  [[nodiscard]] bool is_greedy() const { return result.sample == 0; }
};

[[nodiscard]] inline int blocks_for(int tokens) {
  return (tokens + block_pool::block_tokens - 1) / block_pool::block_tokens;
}

}  // namespace serving
