// SPDX-License-Identifier: Apache-2.0
// The prefix cache: finds the blocks of prompts that were computed before.
#pragma once

#include <agent_replay/radix_tree.hpp>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "block_pool.hpp"

namespace serving {

/// The ids of the tokens of a block. The tree finds a block by all tokens up to its end, so two prompts never share a
/// block by mistake.
using block_ids = std::array<std::uint8_t, block_pool::block_tokens>;

/// The blocks as the tree sees them: what it gives back loses the cache's reference.
class cached_blocks {
 public:
  static constexpr int dead = block_pool::dead;

  explicit cached_blocks(block_pool& pool) : pool_(&pool) {}
  [[nodiscard]] int available() const { return pool_->available(); }
  void give(int block) { pool_->uncache(block); }

 private:
  block_pool* pool_;
};

/// A radix tree of blocks. Only whole blocks that hold every token of their part of a prompt are in it: a policy that
/// drops entries first gets blocks of its own.
class prefix_cache {
 public:
  using tree = agent_replay::basic_radix_tree<block_ids, cached_blocks>;
  using node = tree::tree_node;

  explicit prefix_cache(block_pool& pool) : pool_(&pool), blocks_(pool), tree_(blocks_) {}

  /// The bytes of the tree if every block of the pool has a node of its own, which has a place in its parent's map.
  [[nodiscard]] std::int64_t most_bytes() const {
    std::size_t const place = sizeof(std::pair<block_ids const, std::unique_ptr<node>>) + 4 * sizeof(void*);
    return static_cast<std::int64_t>(sizeof(node) + place + sizeof(block_ids) + sizeof(int)) * pool_->blocks();
  }

  /// Finds the blocks of the longest cached prefix of the first `tokens` tokens of a text, adds a reference to each,
  /// and locks them. `unlock` and a `give` for each block undo this.
  struct found {
    std::vector<int> blocks;
    node* locked = nullptr;
  };
  [[nodiscard]] found match(std::span<std::uint8_t const> text, int tokens) {
    auto at = tree_.match(ids_of(text.first(static_cast<std::size_t>(tokens))), 0);
    for (int const block : at.slots) pool_->share(block);
    tree_.lock(*at.node);
    return {std::move(at.slots), at.node};
  }
  void lock(node* of) { tree_.lock(*of); }
  void unlock(node* of) { tree_.unlock(*of); }

  /// The number of blocks that `match` would find and that requests reference already.
  [[nodiscard]] int count_used(std::span<std::uint8_t const> text, int tokens) {
    auto const at = tree_.match(ids_of(text.first(static_cast<std::size_t>(tokens))), 0);
    int used = 0;
    for (int const block : at.slots) used += pool_->users(block) > 0 ? 1 : 0;
    return used;
  }

  /// Puts the whole blocks of a text into the cache while their request goes on. If another request has put a block of
  /// the same text there before, the request takes that block in place of its own. Returns the node that is locked
  /// instead of `locked`, which may be null.
  node* publish(std::span<std::uint8_t const> text, std::span<int> table, node* locked) {
    std::vector<block_ids> const ids = ids_of(text);
    std::vector<int> blocks(table.begin(), table.begin() + std::ssize(ids));
    // The tree gives back what it does not need, so every block that it lacks is cached first.
    for (int const block : blocks) {
      if (!pool_->is_cached(block)) pool_->cache(block);
    }
    auto const put = tree_.insert(ids, blocks, 0, false);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i] == table[i]) continue;
      pool_->share(blocks[i]);
      pool_->give(table[i]);
      table[i] = blocks[i];
    }
    tree_.lock(*put.node);
    if (locked != nullptr) tree_.unlock(*locked);
    return put.node;
  }

  /// Gives up idle blocks, those of the least recently used prompts first, until the pool has `blocks` free ones or
  /// none is idle.
  void make_available(int blocks) {
    if (pool_->available() < blocks) tree_.evict(blocks - pool_->available());
  }

  /// Calls visit(block) for every block of the cache.
  template <class Visit>
  void for_each_block(Visit const& visit) {
    tree_.for_each([&](node& at) {
      for (int const block : at.slots) visit(block);
    });
  }

 private:
  static std::vector<block_ids> ids_of(std::span<std::uint8_t const> text) {
    std::vector<block_ids> ids(text.size() / std::size_t{block_pool::block_tokens});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::copy_n(text.begin() + static_cast<std::ptrdiff_t>(i) * block_pool::block_tokens, ids[i].size(),
                  ids[i].begin());
    }
    return ids;
  }

  block_pool* pool_;
  cached_blocks blocks_;
  tree tree_;
};

}  // namespace serving
