// SPDX-License-Identifier: Apache-2.0
// Checks an engine whose cache a policy shortens against a second engine, which keeps every entry and masks the entries
// that the policy has dropped.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "engine.hpp"

class full_cache_check {
 public:
  full_cache_check(engine& under_test, int capacity) : tested_(&under_test), full_(under_test.sequences, capacity) {
    full_.sees = [this](int sequence, int layer, int kv_head, int row_position, int entry_position) {
      std::vector<int> const& held = held_[index(sequence, layer, kv_head)];
      return entry_position == row_position || std::binary_search(held.begin(), held.end(), entry_position);
    };
  }
  full_cache_check(full_cache_check const&) = delete;  // `sees` refers to this object
  full_cache_check& operator=(full_cache_check const&) = delete;

  /// Call it after each forward of the tested engine. It runs the same tokens through the full engine. If the logits of
  /// the two engines differ, it prints one line and ends the program with status 1.
  void step() {
    token_batch const& tokens = tested_->new_tokens;
    for (int s = 0; s < full_.sequences; ++s) {
      for (int i = 0; i < engine::lanes; ++i) read_positions(s, i / engine::kv_heads, i % engine::kv_heads);
      full_.append(s, static_cast<int>(tokens[static_cast<std::size_t>(s)].size()));
    }
    full_.forward(tokens);
    for (int i = 0; i < full_.sequences * engine::vocabulary; ++i) {
      float const expected = full_.logits[i], got = tested_->logits[i];
      if (std::abs(got - expected) <= 1e-5f * std::max(1.0f, std::abs(expected))) continue;
      std::fprintf(stderr, "sequence %d, position %d: logit %d is %g, and with a full cache under a mask %g\n",
                   i / engine::vocabulary, full_.lengths[i / engine::vocabulary] - 1, i % engine::vocabulary,
                   static_cast<double>(got), static_cast<double>(expected));
      std::exit(1);
    }
  }

  /// Prints how many entries each lane of a sequence holds.
  void print_kept(int sequence) {
    std::printf("sequence %d: its lanes keep", sequence);
    for (int i = 0; i < engine::lanes; ++i) {
      std::size_t const kept = tested_->entries(sequence, i / engine::kv_heads, i % engine::kv_heads).size();
      std::printf(" %d", static_cast<int>(kept));
    }
    std::printf(" of %d entries\n", full_.lengths[sequence]);
  }

 private:
  static std::size_t index(int sequence, int layer, int kv_head) {
    return static_cast<std::size_t>((sequence * engine::layers + layer) * engine::kv_heads + kv_head);
  }
  void read_positions(int sequence, int layer, int kv_head) {
    held_.resize(index(full_.sequences, 0, 0));
    std::vector<int>& held = held_[index(sequence, layer, kv_head)];
    held.clear();
    for (cached_entry const& each : tested_->entries(sequence, layer, kv_head)) held.push_back(each.position);
  }

  engine* tested_;
  engine full_;
  std::vector<std::vector<int>> held_;  // the positions that each lane of the tested engine holds
};
