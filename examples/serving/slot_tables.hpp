// The tables of running requests, by slot: counts, positions and blocks, as kernels and policies read them.
#pragma once

#include <numeric>
#include <vector>

#include "block_pool.hpp"

namespace serving {

/// A row of tables for each of `slots` running requests. All lanes of a request have one list of blocks and one count,
/// and each lane has positions of its own, because a policy keeps other tokens in each lane.
class slot_tables {
 public:
  slot_tables(block_pool& pool, int slots, int bound)
      : pool_(&pool),
        slots_(slots),
        bound_(bound),
        blocks_((bound + block_pool::block_tokens - 1) / block_pool::block_tokens) {
    auto const size = [](int n) { return static_cast<std::size_t>(n); };
    count_.resize(size(slots) * size(lanes()));
    position_.resize(size(slots) * size(lanes()) * size(bound));
    in_flight_.resize(size(slots));
    request_.resize(size(slots));
    table_.resize(size(slots) * size(blocks_));
    free_.resize(size(slots));
    std::iota(free_.rbegin(), free_.rend(), 0);
  }

  [[nodiscard]] int slots() const { return slots_; }
  [[nodiscard]] int bound() const { return bound_; }
  [[nodiscard]] int free_slots() const { return static_cast<int>(free_.size()); }

  /// Takes a slot for a request that carries a number. `kv::reset` makes it ready.
  [[nodiscard]] int take(int number) {
    int const slot = free_.back();
    free_.pop_back();
    request_[static_cast<std::size_t>(slot)] = number;
    return slot;
  }
  void give(int slot) { free_.push_back(slot); }

  /// The number of entries of the fullest lane.
  [[nodiscard]] int entries(int slot) const {
    auto const first = count_.begin() + std::ptrdiff_t{slot} * lanes();
    return *std::max_element(first, first + lanes());
  }
  /// Copies a list of blocks into the table that kernels read.
  void write_blocks(int slot, std::vector<int> const& blocks) {
    kv::expects(std::ssize(blocks) <= blocks_, "slot_tables", "blocks", std::ssize(blocks),
                [&] { return "a request has at most " + std::to_string(blocks_); });
    std::copy(blocks.begin(), blocks.end(), table_.begin() + std::ptrdiff_t{slot} * blocks_);
  }
  /// The view of all slots. `kv::only` restricts it to some of them.
  [[nodiscard]] kv::cache view() {
    kv::shape const& model = pool_->shape();
    std::int64_t const row = std::int64_t{lanes()} * bound_;
    int const heads = model.kv_heads;
    kv::by_lane<int> const blocks = table();
    return {
        .shape = model,
        .lanes = {.sequences = slots_,
                  .layer_begin = 0,
                  .layer_end = model.layers,
                  .heads = heads,
                  .bound = bound_,
                  .count = {count_.data(), lanes(), heads, 1},
                  .position = {position_.data(), row, std::int64_t{heads} * bound_, bound_},
                  .in_flight = in_flight_.data(),
                  .request = {request_.data(), 1, 0, 0}},
        .k = pool_->keys(),
        .v = pool_->values(),
        .where = kv::block_table({blocks.data, blocks.sequence, 0, 0}, block_pool::block_tokens, pool_->blocks() + 1)};
  }
  /// The table of blocks, which all lanes of a request share.
  [[nodiscard]] kv::by_lane<int> table() { return {table_.data(), blocks_, 0, 0}; }

 private:
  [[nodiscard]] int lanes() const { return pool_->shape().layers * pool_->shape().kv_heads; }

  block_pool* pool_;
  int slots_;
  int bound_;
  int blocks_;                  ///< the most blocks of a request
  std::vector<int> count_;      ///< [slots][lanes]
  std::vector<int> position_;   ///< [slots][lanes][bound]
  std::vector<int> in_flight_;  ///< [slots]
  std::vector<int> request_;    ///< [slots], what a seeded score depends on
  std::vector<int> table_;      ///< [slots][blocks]
  std::vector<int> free_;       ///< slots
};

}  // namespace serving
