// SPDX-License-Identifier: Apache-2.0
// The engine's memory: one pool of units for all sequences, and the tables of a sequence.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/lists.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tinylm {

namespace kv = kvpolicy;

/// How a pool divides its memory into units. This limits what a policy can do with it.
///
/// - Pages of 16 tokens of *one lane*: a lane that keeps less than its neighbours frees memory, but rows must move.
/// - Slots of one token of one lane (`unit_tokens = 1`): each lane has a list of its slots, and no row must move.
/// - Slots for all lanes of a token (`whole_tokens`): there is one list for all layers and heads, as in engines with a
///   prefix cache, and a token is dropped for every lane at once.
struct pool_options {
  int unit_tokens = 16;
  bool whole_tokens = false;
  bool mapped = false;  ///< sequences keep a map from positions to units, for layouts that redirect or mask
};

/// A pool of units. Each holds keys, then values, in float32.
class kv_pool {
 public:
  static constexpr int page_tokens = 16;

  kv_pool(kv::shape const& model, int pages, pool_options const& how = {}) : model_(model), how_(how), pages_(pages) {
    kv::expects(pages >= 1, "kv_pool", "pages", pages, "a pool has at least one page");
    kv::expects(!how.mapped || how.unit_tokens == 1, "kv_pool", "unit_tokens", how.unit_tokens,
                "a map names one unit a position");
    memory_.resize(static_cast<std::size_t>(pages) * page_floats());
    for (int page = pages; page-- > 0;) free_.push_back(page);
    if (how.mapped) dead_ = take();
  }
  kv_pool(kv_pool const&) = delete;  // sequences point to it
  kv_pool& operator=(kv_pool const&) = delete;

  [[nodiscard]] kv::shape const& shape() const { return model_; }
  [[nodiscard]] pool_options const& how() const { return how_; }
  [[nodiscard]] int pages() const { return pages_; }
  [[nodiscard]] int free_pages() const { return static_cast<int>(free_.size()); }
  /// In a mapped pool the slot that stands for dropped positions. It belongs to no sequence.
  [[nodiscard]] int dead() const { return dead_; }
  [[nodiscard]] std::int64_t page_bytes() const { return static_cast<std::int64_t>(page_floats() * sizeof(float)); }
  /// The bytes of the keys and values of one lane in a unit.
  [[nodiscard]] std::int64_t lane_bytes() const { return page_bytes() / lanes_a_unit(); }
  [[nodiscard]] int lanes_a_unit() const { return how_.whole_tokens ? model_.layers * model_.kv_heads : 1; }
  [[nodiscard]] std::byte* data() { return reinterpret_cast<std::byte*>(memory_.data()); }
  [[nodiscard]] std::byte* page(int which) { return data() + which * page_bytes(); }

  /// Takes any free page. The caller must have checked `free_pages` before.
  [[nodiscard]] int take() {
    int const page = free_.back();
    free_.pop_back();
    return page;
  }
  void give(int page) { free_.push_back(page); }

 private:
  [[nodiscard]] std::size_t page_floats() const {
    return 2 * static_cast<std::size_t>(how_.unit_tokens) * static_cast<std::size_t>(model_.head_dim) *
           static_cast<std::size_t>(lanes_a_unit());
  }

  kv::shape model_;
  pool_options how_;
  int pages_;
  int dead_ = -1;
  std::vector<float> memory_;
  std::vector<int> free_;
};

/// One sequence in a pool: a table of units, a count and positions for every lane, or one of each for all lanes if the
/// pool's units hold whole tokens. The destructor gives its units back.
///
/// The order of a forward: call `reserve` for its units, `kvpolicy::append` (which edits counts and positions through
/// `view`) and `note`, then write the rows. After an eviction or a truncation call `release`, which gives back the
/// units after each lane's end.
class kv_sequence {
 public:
  /// An empty sequence whose lanes can hold up to `bound` entries.
  kv_sequence(kv_pool& pool, int bound) : pool_(&pool), bound_(bound) {
    kv::expects(bound >= 1, "kv_sequence", "bound", bound, "a lane has room for at least one entry");
    auto const all = static_cast<std::size_t>(rows());
    table_.resize(all * static_cast<std::size_t>(row_units()));
    num_units_.resize(all);
    count_.resize(all);
    position_.resize(all * static_cast<std::size_t>(bound));
    freed_.resize(table_.size());
    freed_count_.resize(all);
  }
  kv_sequence(kv_sequence&& other) noexcept : pool_(nullptr), bound_(other.bound_) { swap(other); }
  kv_sequence& operator=(kv_sequence&& other) noexcept {
    swap(other);
    return *this;
  }
  ~kv_sequence() {
    if (pool_ == nullptr) return;
    for (int row = 0; row < rows(); ++row) shrink(row, 0);
    for (auto const& [row, unit] : hidden_) pool_->give(unit);
  }

  /// Copies the entries into a new sequence with units of its own, whose bound is `bound` if that is more. No entry may
  /// have been masked.
  /// - throws: `invalid_argument` if the pool has too few free units. Nothing is changed then.
  [[nodiscard]] kv_sequence fork(int bound = 0) const {
    kv_sequence copy(*pool_, std::max(bound, bound_));
    copy.expect_pages("kv_sequence::fork", held_pages());
    copy.count_ = count_;
    copy.in_flight_ = in_flight_;
    for (int row = 0; row < rows(); ++row) {
      std::copy_n(position_.data() + std::ptrdiff_t{row} * bound_, count_[static_cast<std::size_t>(row)],
                  copy.position_.data() + std::ptrdiff_t{row} * copy.bound_);
      copy.grow(row, num_units_[static_cast<std::size_t>(row)]);
      for (int at = 0; at < num_units_[static_cast<std::size_t>(row)]; ++at) {
        std::memcpy(pool_->page(copy.unit_of(row, at)), pool_->page(unit_of(row, at)),
                    static_cast<std::size_t>(pool_->page_bytes()));
      }
    }
    if (pool_->how().mapped) copy.map_all(map_length_);
    return copy;
  }

  /// The view that kvpolicy reads and edits: counts and positions of this sequence, and rows of the pool. If any unit
  /// may belong to any lane, layers and heads have stride 0, and only the tables say to which lane a unit belongs.
  [[nodiscard]] kv::cache view() {
    return over({table_.data(), 0, row_units() * layer_rows(), row_units() * head_rows()}, count_.data(),
                position_.data());
  }

  /// A view of every position of the text so far, including those that a policy has dropped, as an engine that masks
  /// sees it. It needs a mapped pool.
  [[nodiscard]] kv::cache everything() {
    every_count_.assign(static_cast<std::size_t>(rows()), map_length_);
    kv::cache all = over(map(), every_count_.data(), every_position_.data());
    all.lanes.capacity = map_bound_;
    all.lanes.position = {every_position_.data(), 0, 0, 0};
    return all;
  }

  /// The tables that appliers write, and those in which they list freed units.
  [[nodiscard]] kv::by_lane<int> list() {
    return {table_.data(), 0, row_units() * layer_rows(), row_units() * head_rows()};
  }
  [[nodiscard]] kv::by_lane<int> map() { return {map_.data(), 0, map_bound_ * layer_rows(), map_bound_ * head_rows()}; }
  [[nodiscard]] kv::unit_list freed() {
    return {{freed_.data(), 0, row_units() * layer_rows(), row_units() * head_rows()},
            {freed_count_.data(), 0, layer_rows(), head_rows()}};
  }

  /// Gives every lane the units for `tokens` more entries.
  /// - throws: `invalid_argument` if a lane would exceed the bound, or the pool has too few free units. Nothing is
  ///   changed then.
  void reserve(int tokens) {
    kv::expects(tokens >= 0, "kv_sequence::reserve", "tokens", tokens, "a count cannot be negative");
    int missing = 0;
    for (int row = 0; row < rows(); ++row) {
      int const count = count_[static_cast<std::size_t>(row)];
      kv::expects(tokens <= bound_ - count, "kv_sequence::reserve", "tokens", tokens,
                  "a lane holds " + std::to_string(count) + " of at most " + std::to_string(bound_));
      missing += std::max(0, units_for(count + tokens) - num_units_[static_cast<std::size_t>(row)]);
    }
    expect_pages("kv_sequence::reserve", missing);
    for (int row = 0; row < rows(); ++row) grow(row, units_for(count_[static_cast<std::size_t>(row)] + tokens));
  }

  /// In a mapped pool, maps the positions from `position` on to the units of the last `tokens` entries.
  void note(int position, int tokens) {
    if (pool_->how().mapped) map_all(position + tokens);
  }

  /// Gives the units after each lane's last entry back to the pool.
  void release() {
    for (int row = 0; row < rows(); ++row) shrink(row, units_for(count_[static_cast<std::size_t>(row)]));
  }

  /// Gives back the units that an applier has listed as freed.
  void release_freed() {
    for (int row = 0; row < rows(); ++row) {
      for (int i = 0; i < freed_count_[static_cast<std::size_t>(row)]; ++i) pool_->give(freed_[slot(row, i)]);
      num_units_[static_cast<std::size_t>(row)] = count_[static_cast<std::size_t>(row)];
    }
  }

  /// Keeps the units of masked positions until the sequence ends or is cut before them.
  void keep_hidden() {
    for (int row = 0; row < rows(); ++row) {
      int& owned = num_units_[static_cast<std::size_t>(row)];
      for (; owned > count_[static_cast<std::size_t>(row)]; --owned) hidden_.emplace_back(row, unit_of(row, owned - 1));
    }
  }

  /// Cuts the text: removes the positions from `length` on. Returns the units of those that were masked.
  std::vector<std::pair<int, int>> cut(int length) {
    std::vector<std::pair<int, int>> shown;
    for (int row = 0; pool_->how().mapped && row < rows(); ++row) {
      for (int p = length; p < map_length_; ++p) {
        std::pair<int, int> const at{row, map_[map_at(row, p)]};
        if (auto const found = std::find(hidden_.begin(), hidden_.end(), at); found != hidden_.end()) {
          pool_->give(at.second);
          shown.push_back(at);
          hidden_.erase(found);
        }
      }
    }
    map_length_ = std::min(map_length_, length);
    release();
    return shown;
  }

  [[nodiscard]] int bound() const { return bound_; }
  [[nodiscard]] kv_pool& pool() const { return *pool_; }

  /// The entries of all lanes, and the bytes of their keys and values.
  [[nodiscard]] std::int64_t live_entries() const {
    std::int64_t all = 0;
    for (int const count : count_) all += count;
    return all * pool_->lanes_a_unit();
  }
  [[nodiscard]] std::int64_t live_bytes() const {
    return live_entries() * pool_->lane_bytes() / pool_->how().unit_tokens;
  }

  /// The number of units that the sequence has taken from the pool.
  [[nodiscard]] int held_pages() const {
    int all = static_cast<int>(hidden_.size());
    for (int const owned : num_units_) all += owned;
    return all;
  }

 private:
  /// The rows of the tables: one for each lane, or one for all.
  [[nodiscard]] int rows() const {
    return pool_->how().whole_tokens ? 1 : pool_->shape().layers * pool_->shape().kv_heads;
  }
  [[nodiscard]] std::int64_t layer_rows() const { return pool_->how().whole_tokens ? 0 : pool_->shape().kv_heads; }
  [[nodiscard]] std::int64_t head_rows() const { return pool_->how().whole_tokens ? 0 : 1; }
  [[nodiscard]] int row_units() const { return units_for(bound_); }
  [[nodiscard]] int units_for(int tokens) const {
    int const unit = pool_->how().unit_tokens;
    return (tokens + unit - 1) / unit;
  }

  [[nodiscard]] kv::cache over(kv::by_lane<int> table, int* count, int* position) {
    kv::shape const& model = pool_->shape();
    pool_options const& how = pool_->how();
    std::int64_t const row = std::int64_t{model.head_dim} * 4;
    kv::plane keys{.base = pool_->data(),
                   .element = kv::codec::f32,
                   .channels = model.head_dim,
                   .unit_stride = pool_->page_bytes(),
                   .token_stride = row,
                   .channel_stride = 4};
    if (how.whole_tokens) {
      keys.head_stride = pool_->lane_bytes();
      keys.layer_stride = keys.head_stride * model.kv_heads;
    }
    kv::plane values = keys;
    values.base += row * how.unit_tokens;
    kv::by_lane<int const> const read{table.data, table.sequence, table.layer, table.head};
    return {.shape = model,
            .lanes = {.sequences = 1,
                      .layer_begin = 0,
                      .layer_end = model.layers,
                      .heads = model.kv_heads,
                      .capacity = bound_,
                      .count = {count, 0, layer_rows(), head_rows()},
                      .position = {position, 0, bound_ * layer_rows(), bound_ * head_rows()},
                      .in_flight = &in_flight_},
            .k = keys,
            .v = values,
            .where = how.unit_tokens == 1 ? kv::slot_map(read, pool_->pages())
                                          : kv::block_table(read, how.unit_tokens, pool_->pages())};
  }

  [[nodiscard]] int unit_of(int row, int at) const { return table_[slot(row, at)]; }
  [[nodiscard]] std::size_t slot(int row, int at) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(row_units()) + static_cast<std::size_t>(at);
  }
  [[nodiscard]] std::size_t map_at(int row, int position) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(map_bound_) + static_cast<std::size_t>(position);
  }

  /// Extends the map to `length` positions. New positions get the units of the present entries.
  void map_all(int length) {
    if (length > map_bound_) {
      int const wider = std::max(2 * map_bound_, length);
      std::vector<int> wide(static_cast<std::size_t>(rows()) * static_cast<std::size_t>(wider), pool_->dead());
      for (int row = 0; row < rows(); ++row) {
        std::copy_n(map_.data() + map_at(row, 0), map_length_,
                    wide.data() + static_cast<std::ptrdiff_t>(row) * std::ptrdiff_t{wider});
      }
      map_ = std::move(wide);
      map_bound_ = wider;
      for (int p = static_cast<int>(every_position_.size()); p < wider; ++p) every_position_.push_back(p);
    }
    map_length_ = std::max(map_length_, length);
    for (int row = 0; row < rows(); ++row) {
      int const* const position = position_.data() + std::ptrdiff_t{row} * bound_;
      for (int e = 0; e < count_[static_cast<std::size_t>(row)]; ++e) map_[map_at(row, position[e])] = unit_of(row, e);
    }
  }

  void expect_pages(char const* call, int pages) const {
    kv::expects(pages <= pool_->free_pages(), call, "pages", pages,
                "the pool has " + std::to_string(pool_->free_pages()) + " left");
  }
  void grow(int row, int units) {
    for (int& owned = num_units_[static_cast<std::size_t>(row)]; owned < units; ++owned) {
      table_[slot(row, owned)] = pool_->take();
    }
  }
  void shrink(int row, int units) {
    for (int& owned = num_units_[static_cast<std::size_t>(row)]; owned > units; --owned)
      pool_->give(unit_of(row, owned - 1));
  }

  void swap(kv_sequence& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(bound_, other.bound_);
    table_.swap(other.table_);
    num_units_.swap(other.num_units_);
    count_.swap(other.count_);
    position_.swap(other.position_);
    map_.swap(other.map_);
    every_count_.swap(other.every_count_);
    every_position_.swap(other.every_position_);
    freed_.swap(other.freed_);
    freed_count_.swap(other.freed_count_);
    hidden_.swap(other.hidden_);
    std::swap(map_length_, other.map_length_);
    std::swap(map_bound_, other.map_bound_);
    std::swap(in_flight_, other.in_flight_);
  }

  kv_pool* pool_;
  int bound_;
  std::vector<int> table_;      ///< [rows][units of a full row]
  std::vector<int> num_units_;  ///< the number of units of each row
  std::vector<int> count_;      ///< the number of entries of each row
  std::vector<int> position_;   ///< [rows][bound]
  std::vector<int> map_;        ///< [rows][map_bound_], the unit of each position in a mapped pool
  std::vector<int> every_count_;
  std::vector<int> every_position_;
  std::vector<int> freed_;                   ///< [rows][units of a full row]
  std::vector<int> freed_count_;             ///< [rows]
  std::vector<std::pair<int, int>> hidden_;  ///< (row, unit) of masked positions
  int map_length_ = 0;
  int map_bound_ = 0;
  int in_flight_ = 0;
};

}  // namespace tinylm
