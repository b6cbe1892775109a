// SPDX-License-Identifier: Apache-2.0
// The tables of running requests, by slot: counts, positions and blocks, as kernels and policies read them.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "block_pool.hpp"

namespace serving {

/// The two kinds of slots. A wide slot has room for a whole request. A narrow one has room for the entries that a
/// policy leaves of it, so that its tables and a policy's state take a fraction of the memory.
enum class width { wide, narrow };

/// How many slots of each kind there are, and the most entries of a lane there.
struct slot_sizes {
  int wide = 64;
  int wide_bound = 1280;
  int narrow = 0;
  int narrow_bound = 0;

  [[nodiscard]] int of(width kind) const { return kind == width::wide ? wide : narrow; }
};

/// A row of tables for each slot. All lanes of a request have one list of blocks and one count, and each lane has
/// positions of its own, because a policy keeps other tokens in each lane.
///
/// The tables consist of *units* with the entries of a narrow slot each. A wide slot is some units in a row. So one
/// view has the slots of both kinds, for a forward, and each kind has a view with the slots of that kind, for policies.
class slot_tables {
 public:
  slot_tables(block_pool& pool, slot_sizes const& sizes)
      : pool_(&pool),
        sizes_(sizes),
        blocks_of_unit_(blocks_of(sizes.narrow > 0 ? sizes.narrow_bound : sizes.wide_bound)),
        units_of_wide_((blocks_of(sizes.wide_bound) + blocks_of_unit_ - 1) / blocks_of_unit_),
        units_(sizes.wide * units_of_wide_ + sizes.narrow) {
    auto const size = [](int n) { return static_cast<std::size_t>(n); };
    count_.resize(size(units_) * size(lanes()));
    position_.resize(size(units_) * size(lanes()) * size(unit_tokens()));
    request_.resize(size(units_));
    table_.resize(size(units_) * size(blocks_of_unit_));
    for (width const kind : {width::wide, width::narrow}) {
      in_flight_[at(kind)].resize(size(sizes.of(kind)));
      free_[at(kind)].resize(size(sizes.of(kind)));
      std::iota(free_[at(kind)].rbegin(), free_[at(kind)].rend(), 0);
    }
  }

  [[nodiscard]] slot_sizes const& sizes() const { return sizes_; }
  /// The most entries of a lane in a slot.
  [[nodiscard]] int bound(width kind) const { return unit_tokens() * step(kind); }
  [[nodiscard]] int free_slots(width kind) const { return static_cast<int>(free_[at(kind)].size()); }
  [[nodiscard]] std::int64_t bytes() const {
    std::size_t const numbers = count_.size() + position_.size() + request_.size() + table_.size() +
                                2 * static_cast<std::size_t>(sizes_.wide + sizes_.narrow);
    return static_cast<std::int64_t>(numbers * sizeof(int));
  }

  /// Takes a slot for a request that carries a number. `kv::reset` makes it ready.
  [[nodiscard]] int take(width kind, int number) {
    int const slot = free_[at(kind)].back();
    free_[at(kind)].pop_back();
    request_[static_cast<std::size_t>(unit(kind, slot))] = number;
    return slot;
  }
  void give(width kind, int slot) { free_[at(kind)].push_back(slot); }

  /// The index of a slot in the view of all slots.
  [[nodiscard]] int unit(width kind, int slot) const { return first(kind) + slot * step(kind); }

  /// The number of entries of the fullest lane.
  [[nodiscard]] int entries(width kind, int slot) const {
    auto const begin = count_.begin() + std::ptrdiff_t{unit(kind, slot)} * lanes();
    return *std::max_element(begin, begin + lanes());
  }
  /// Copies a list of blocks into the table that kernels read.
  void write_blocks(width kind, int slot, std::vector<int> const& blocks) {
    int const most = blocks_of_unit_ * step(kind);
    kv::expects(std::ssize(blocks) <= most, "slot_tables", "blocks", std::ssize(blocks),
                [&] { return "a request has at most " + std::to_string(most); });
    std::copy(blocks.begin(), blocks.end(), table_.begin() + std::ptrdiff_t{unit(kind, slot)} * blocks_of_unit_);
  }

  /// The view of all slots of a kind. `kv::only` restricts it to some of them.
  [[nodiscard]] kv::cache view(width kind) {
    kv::cache made = make_view(first(kind), step(kind), sizes_.of(kind), bound(kind));
    made.lanes.in_flight = in_flight_[at(kind)].data();
    return made;
  }
  /// The view of the slots of both kinds, for a forward. A slot's index is its `unit`.
  [[nodiscard]] kv::cache view() { return make_view(0, 1, units_, bound(width::wide)); }
  /// The table of blocks, which all lanes of a request share.
  [[nodiscard]] kv::by_lane<int> table(width kind) { return table_from(first(kind), step(kind)); }

 private:
  static int blocks_of(int tokens) { return (tokens + block_pool::block_tokens - 1) / block_pool::block_tokens; }
  static std::size_t at(width kind) { return static_cast<std::size_t>(kind); }
  [[nodiscard]] int lanes() const { return pool_->shape().layers * pool_->shape().kv_heads; }
  [[nodiscard]] int unit_tokens() const { return blocks_of_unit_ * block_pool::block_tokens; }
  [[nodiscard]] int step(width kind) const { return kind == width::wide ? units_of_wide_ : 1; }
  [[nodiscard]] int first(width kind) const { return kind == width::wide ? 0 : sizes_.wide * units_of_wide_; }

  [[nodiscard]] kv::by_lane<int> table_from(int unit, int step) {
    return {table_.data() + std::ptrdiff_t{unit} * blocks_of_unit_, std::int64_t{step} * blocks_of_unit_, 0, 0};
  }
  [[nodiscard]] kv::cache make_view(int unit, int step, int slots, int bound) {
    kv::shape const& model = pool_->shape();
    int const heads = model.kv_heads;
    std::int64_t const row = std::int64_t{units_} * unit_tokens();  // the positions of a lane in all units
    kv::by_lane<int> const blocks = table_from(unit, step);
    return {
        .shape = model,
        .lanes = {.sequences = slots,
                  .layer_begin = 0,
                  .layer_end = model.layers,
                  .heads = heads,
                  .capacity = bound,
                  .count = {count_.data() + std::ptrdiff_t{unit} * lanes(), std::int64_t{step} * lanes(), heads, 1},
                  .position = {position_.data() + std::ptrdiff_t{unit} * unit_tokens(),
                               std::int64_t{step} * unit_tokens(), heads * row, row},
                  .request = {request_.data() + unit, step, 0, 0}},
        .k = pool_->keys(),
        .v = pool_->values(),
        .where = kv::block_table({blocks.data, blocks.sequence, 0, 0}, block_pool::block_tokens, pool_->blocks() + 1)};
  }

  block_pool* pool_;
  slot_sizes sizes_;
  int blocks_of_unit_;
  int units_of_wide_;
  int units_;
  std::vector<int> count_;                     ///< [units][lanes]
  std::vector<int> position_;                  ///< [lanes][units][entries of a unit]
  std::vector<int> request_;                   ///< [units], what a seeded score depends on
  std::vector<int> table_;                     ///< [units][blocks of a unit]
  std::array<std::vector<int>, 2> in_flight_;  ///< for each kind [slots]
  std::array<std::vector<int>, 2> free_;       ///< for each kind slots
};

}  // namespace serving
