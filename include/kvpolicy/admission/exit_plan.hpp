// SPDX-License-Identifier: Apache-2.0
// What an admission keeps between its calls: the states of both parts of a dual cache, and the plan of the entries that
// leave the window.
#pragma once

#include <kvpolicy/core/plan.hpp>
#include <kvpolicy/core/state.hpp>
#include <span>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// The states of both parts of a dual cache.
template <class Executor>
struct dual_state {
  state<Executor> window;
  state<Executor> pages;
};

/// The plan of the decisions about entries that leave the window, with the number of such entries of each sequence.
template <class Executor>
class exit_plan {
 public:
  exit_plan(Executor& exec, plan<Executor> leaving)
      : decided(std::move(leaving)),
        exits_(exec, static_cast<std::size_t>(decided.lanes().sequences)),
        below_(exec, exits_.size()),
        new_tokens_(exec, exits_.size()),
        tokens_(exits_.size()) {}

  plan<Executor> decided;

  // Each of these has one number for each sequence, in the executor's memory.

  /// Entries that leave the window now.
  [[nodiscard]] int* exits() { return exits_.data(); }
  /// Entries of a chunk that are older than its last `window` tokens, and so never enter the window.
  [[nodiscard]] int* below() { return below_.data(); }
  /// New tokens.
  [[nodiscard]] int* new_tokens() { return new_tokens_.data(); }
  /// New tokens of each sequence, in host memory.
  [[nodiscard]] std::span<int> tokens() { return tokens_; }

 private:
  typename Executor::template buffer<int> exits_;
  typename Executor::template buffer<int> below_;
  typename Executor::template buffer<int> new_tokens_;
  std::vector<int> tokens_;
};

}  // namespace KVPOLICY_NAMESPACE
