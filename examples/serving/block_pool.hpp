// SPDX-License-Identifier: Apache-2.0
// The memory of all requests: blocks of 16 tokens with counts of references.
#pragma once

#include <agent_replay/allocator.hpp>
#include <algorithm>
#include <cstring>
#include <kvpolicy/core/cache.hpp>
#include <vector>

namespace serving {

namespace kv = kvpolicy;

/// A pool of blocks. A block holds keys and values, in float32, of 16 tokens in all layers and heads, and, if a policy
/// needs it, one number for each token and lane that a gate has computed (the log beta of TRIM-KV).
///
/// A block is referenced by any number of requests, and by the prefix cache or not. It is free when nothing references
/// it. A block that only the prefix cache references is *idle*: the cache gives it up when a request needs it.
class block_pool {
 public:
  static constexpr int block_tokens = 16;
  static constexpr int dead = agent_replay::slot_allocator::dead;  ///< no block has this number

  block_pool(kv::shape const& model, int blocks, bool with_log_betas = false)
      : model_(model),
        free_(blocks + 1),
        users_(static_cast<std::size_t>(blocks) + 1),
        cached_(static_cast<std::size_t>(blocks) + 1) {
    memory_.resize(users_.size() * block_floats());
    if (with_log_betas) log_betas_.resize(users_.size() * lanes() * std::size_t{block_tokens});
  }
  block_pool(block_pool const&) = delete;  // views point into it
  block_pool& operator=(block_pool const&) = delete;

  [[nodiscard]] kv::shape const& shape() const { return model_; }
  [[nodiscard]] int blocks() const { return free_.slots() - 1; }
  [[nodiscard]] int available() const { return free_.available(); }
  [[nodiscard]] int idle() const { return idle_; }
  /// The blocks that requests reference, now and at most so far.
  [[nodiscard]] int in_use() const { return free_.allocated() - idle_; }
  [[nodiscard]] int peak_in_use() const { return peak_in_use_; }
  [[nodiscard]] std::int64_t block_bytes() const { return static_cast<std::int64_t>(block_floats() * sizeof(float)); }
  /// The bytes of all rows, of the numbers beside them, and of the counts of references.
  [[nodiscard]] std::int64_t rows_bytes() const { return static_cast<std::int64_t>(memory_.size() * sizeof(float)); }
  [[nodiscard]] std::int64_t log_betas_bytes() const {
    return static_cast<std::int64_t>(log_betas_.size() * sizeof(float));
  }
  [[nodiscard]] std::int64_t counters_bytes() const {  // two ints and two bits for each block
    return static_cast<std::int64_t>(users_.size()) * (2 * static_cast<std::int64_t>(sizeof(int)) + 1);
  }
  [[nodiscard]] int users(int block) const { return users_[index(block)]; }
  [[nodiscard]] bool is_cached(int block) const { return cached_[index(block)]; }
  /// True if a request must not write to the block, because another request or the prefix cache reads it.
  [[nodiscard]] bool is_shared(int block) const { return users(block) + (is_cached(block) ? 1 : 0) > 1; }

  /// Takes a free block for a request. The caller should check `available` before.
  /// - throws: `invalid_argument` if there is none.
  [[nodiscard]] int take() {
    int const block = free_.take();
    users_[index(block)] = 1;
    note_peak();
    return block;
  }
  /// Adds the reference of a request.
  void share(int block) {
    expect_allocated("share", block);
    if (users_[index(block)]++ == 0) --idle_;
    note_peak();
  }
  /// Removes the reference of a request.
  void give(int block) {
    expect_allocated("give", block);
    kv::expects(users(block) > 0, "give", "block", block, "no request references it");
    if (--users_[index(block)] > 0) return;
    if (is_cached(block)) {
      ++idle_;
    } else {
      free_.give(block);
    }
  }

  /// Adds and removes the reference of the prefix cache.
  void cache(int block) {
    expect_allocated("cache", block);
    kv::expects(!is_cached(block), "cache", "block", block, "it is cached already");
    cached_[index(block)] = true;
    if (users(block) == 0) ++idle_;
  }
  void uncache(int block) {
    kv::expects(is_cached(block), "uncache", "block", block, "it is not cached");
    cached_[index(block)] = false;
    if (users(block) > 0) return;
    --idle_;
    free_.give(block);
  }

  [[nodiscard]] float* block(int which) { return memory_.data() + index(which) * block_floats(); }
  [[nodiscard]] bool has_log_betas() const { return !log_betas_.empty(); }
  /// The numbers of a block [lane][token].
  [[nodiscard]] float* log_betas(int which) {
    return log_betas_.data() + index(which) * lanes() * std::size_t{block_tokens};
  }

  [[nodiscard]] kv::plane keys() { return rows(0); }
  [[nodiscard]] kv::plane values() { return rows(1); }

 private:
  static std::size_t index(int block) { return static_cast<std::size_t>(block); }
  [[nodiscard]] std::size_t lanes() const { return index(model_.layers * model_.kv_heads); }
  [[nodiscard]] std::size_t block_floats() const {
    return 2 * lanes() * std::size_t{block_tokens} * index(model_.head_dim);
  }

  /// A block is [layer][head][keys, values][token][D].
  [[nodiscard]] kv::plane rows(int part) {
    std::int64_t const row = std::int64_t{model_.head_dim} * 4;
    return {.base = reinterpret_cast<std::byte*>(memory_.data()) + part * block_tokens * row,
            .element = kv::codec::f32,
            .channels = model_.head_dim,
            .layer_stride = 2 * block_tokens * row * model_.kv_heads,
            .unit_stride = block_bytes(),
            .token_stride = row,
            .head_stride = 2 * block_tokens * row,
            .channel_stride = 4};
  }

  void expect_allocated(char const* call, int block) const {
    bool const there = block > dead && block <= blocks() && free_.holds(block);
    kv::expects(there, call, "block", block, "it is free, or not a block of the pool");
  }
  void note_peak() { peak_in_use_ = std::max(peak_in_use_, in_use()); }

  kv::shape model_;
  agent_replay::slot_allocator free_;
  std::vector<int> users_;     ///< for each block the number of references of requests
  std::vector<bool> cached_;   ///< for each block whether the prefix cache references it
  std::vector<float> memory_;  ///< [block][layer][head][keys, values][token][D]
  std::vector<float> log_betas_;
  int idle_ = 0;
  int peak_in_use_ = 0;
};

}  // namespace serving
