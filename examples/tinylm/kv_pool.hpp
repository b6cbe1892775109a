// The engine's paged memory: one pool of pages for all lanes of all sequences, and the block tables of a sequence.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/error.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tinylm {

namespace kv = kvpolicy;

/// Pages of 16 tokens of *one lane*, keys then values, float32. A lane that keeps less than its neighbours frees
/// memory, because a page never holds two lanes' tokens.
class kv_pool {
 public:
  static constexpr int page_tokens = 16;

  kv_pool(kv::shape const& model, int pages) : model_(model), pages_(pages) {
    kv::expects(pages >= 1, "kv_pool", "pages", pages, "a pool has at least one page");
    memory_.resize(static_cast<std::size_t>(pages) * page_floats());
    for (int page = pages; page-- > 0;) free_.push_back(page);
  }
  kv_pool(kv_pool const&) = delete;  // sequences point at it
  kv_pool& operator=(kv_pool const&) = delete;

  [[nodiscard]] kv::shape const& shape() const { return model_; }
  [[nodiscard]] int pages() const { return pages_; }
  [[nodiscard]] int free_pages() const { return static_cast<int>(free_.size()); }
  [[nodiscard]] std::int64_t page_bytes() const { return static_cast<std::int64_t>(page_floats() * sizeof(float)); }
  [[nodiscard]] std::byte* data() { return reinterpret_cast<std::byte*>(memory_.data()); }
  [[nodiscard]] std::byte* page(int which) { return data() + which * page_bytes(); }

  /// Any free page. The caller asked `free_pages` before.
  [[nodiscard]] int take() {
    int const page = free_.back();
    free_.pop_back();
    return page;
  }
  void give(int page) { free_.push_back(page); }

 private:
  [[nodiscard]] std::size_t page_floats() const {
    return 2 * std::size_t{page_tokens} * static_cast<std::size_t>(model_.head_dim);
  }

  kv::shape model_;
  int pages_;
  std::vector<float> memory_;
  std::vector<int> free_;
};

/// One sequence in a pool: a block table, a count and positions for every lane. Gives its pages back when it ends.
///
/// The order of a forward: `reserve` room, tell kvpolicy (`kvpolicy::append` edits counts and positions through
/// `view`), write rows. After an eviction or a truncation: `release` the pages behind each lane's end.
class kv_sequence {
 public:
  /// An empty sequence whose lanes never hold more than `bound` entries.
  kv_sequence(kv_pool& pool, int bound) : pool_(&pool), bound_(bound) {
    kv::expects(bound >= 1, "kv_sequence", "bound", bound, "a lane has room for at least one entry");
    auto const all = static_cast<std::size_t>(lanes());
    table_.resize(all * static_cast<std::size_t>(lane_pages()));
    held_.resize(all);
    count_.resize(all);
    position_.resize(all * static_cast<std::size_t>(bound));
  }
  kv_sequence(kv_sequence&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        bound_(other.bound_),
        table_(std::move(other.table_)),
        held_(std::move(other.held_)),
        count_(std::move(other.count_)),
        position_(std::move(other.position_)),
        in_flight_(other.in_flight_) {}
  kv_sequence& operator=(kv_sequence&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(bound_, other.bound_);
    table_.swap(other.table_);
    held_.swap(other.held_);
    count_.swap(other.count_);
    position_.swap(other.position_);
    std::swap(in_flight_, other.in_flight_);
    return *this;
  }
  ~kv_sequence() {
    if (pool_ == nullptr) return;
    for (int lane = 0; lane < lanes(); ++lane) shrink(lane, 0);
  }

  /// A sequence of its own with the same entries, in pages of its own.
  /// - throws: `invalid_argument` if the pool has not enough free pages. Then nothing was changed.
  [[nodiscard]] kv_sequence fork() const {
    kv_sequence copy(*pool_, bound_);
    copy.expect_pages("kv_sequence::fork", held_pages());
    copy.count_ = count_;
    copy.position_ = position_;
    copy.in_flight_ = in_flight_;
    for (int lane = 0; lane < lanes(); ++lane) {
      copy.grow(lane, held_[static_cast<std::size_t>(lane)]);
      for (int at = 0; at < held_[static_cast<std::size_t>(lane)]; ++at) {
        std::memcpy(pool_->page(copy.page_of(lane, at)), pool_->page(page_of(lane, at)),
                    static_cast<std::size_t>(pool_->page_bytes()));
      }
    }
    return copy;
  }

  /// What kvpolicy sees and edits: counts and positions of this sequence, rows of the pool. Any page may serve any
  /// lane, so layers and heads have stride 0: the block table alone says whose a page is.
  [[nodiscard]] kv::cache view() {
    kv::shape const& model = pool_->shape();
    std::int64_t const row = std::int64_t{model.head_dim} * 4;
    kv::plane const keys{.base = pool_->data(),
                         .element = kv::codec::f32,
                         .dims = model.head_dim,
                         .unit = pool_->page_bytes(),
                         .token = row,
                         .dim = 4};
    kv::plane values = keys;
    values.base += row * kv_pool::page_tokens;
    return {.shape = model,
            .who = who(),
            .k = keys,
            .v = values,
            .where = kv::block_table({table_.data(), 0, std::int64_t{lane_pages()} * model.kv_heads, lane_pages()},
                                     kv_pool::page_tokens, pool_->pages())};
  }

  /// Gives every lane room for `tokens` entries behind its last.
  /// - throws: `invalid_argument` if a lane would exceed the bound, or the pool has not enough free pages. Then nothing
  ///   was changed.
  void reserve(int tokens) {
    kv::expects(tokens >= 0, "kv_sequence::reserve", "tokens", tokens, "a count cannot be negative");
    int missing = 0;
    for (int lane = 0; lane < lanes(); ++lane) {
      int const count = count_[static_cast<std::size_t>(lane)];
      kv::expects(tokens <= bound_ - count, "kv_sequence::reserve", "tokens", tokens,
                  "a lane holds " + std::to_string(count) + " of at most " + std::to_string(bound_));
      missing += std::max(0, pages_for(count + tokens) - held_[static_cast<std::size_t>(lane)]);
    }
    expect_pages("kv_sequence::reserve", missing);
    for (int lane = 0; lane < lanes(); ++lane) grow(lane, pages_for(count_[static_cast<std::size_t>(lane)] + tokens));
  }

  /// Gives the pages behind each lane's last entry back to the pool.
  void release() {
    for (int lane = 0; lane < lanes(); ++lane) shrink(lane, pages_for(count_[static_cast<std::size_t>(lane)]));
  }

  [[nodiscard]] int bound() const { return bound_; }
  [[nodiscard]] kv_pool& pool() const { return *pool_; }

  /// Entries of all lanes, and the bytes of their keys and values.
  [[nodiscard]] std::int64_t live_entries() const {
    std::int64_t all = 0;
    for (int const count : count_) all += count;
    return all;
  }
  [[nodiscard]] std::int64_t live_bytes() const { return live_entries() * pool_->page_bytes() / kv_pool::page_tokens; }

  /// Pages of all lanes: what the sequence costs the pool.
  [[nodiscard]] int held_pages() const {
    int all = 0;
    for (int const held : held_) all += held;
    return all;
  }

 private:
  [[nodiscard]] int lanes() const { return pool_->shape().layers * pool_->shape().kv_heads; }
  [[nodiscard]] int lane_pages() const { return pages_for(bound_); }
  static int pages_for(int tokens) { return (tokens + kv_pool::page_tokens - 1) / kv_pool::page_tokens; }

  [[nodiscard]] kv::lanes who() {
    std::int64_t const heads = pool_->shape().kv_heads;
    return {.sequences = 1,
            .layer_begin = 0,
            .layer_end = pool_->shape().layers,
            .heads = pool_->shape().kv_heads,
            .bound = bound_,
            .count = {count_.data(), 0, heads, 1},
            .position = {position_.data(), 0, bound_ * heads, bound_},
            .in_flight = &in_flight_};
  }

  [[nodiscard]] int page_of(int lane, int at) const { return table_[slot(lane, at)]; }
  [[nodiscard]] std::size_t slot(int lane, int at) const {
    return static_cast<std::size_t>(lane) * static_cast<std::size_t>(lane_pages()) + static_cast<std::size_t>(at);
  }

  void expect_pages(char const* call, int pages) const {
    kv::expects(pages <= pool_->free_pages(), call, "pages", pages,
                "the pool has " + std::to_string(pool_->free_pages()) + " left");
  }
  void grow(int lane, int pages) {
    for (int& held = held_[static_cast<std::size_t>(lane)]; held < pages; ++held) {
      table_[slot(lane, held)] = pool_->take();
    }
  }
  void shrink(int lane, int pages) {
    for (int& held = held_[static_cast<std::size_t>(lane)]; held > pages; --held) pool_->give(page_of(lane, held - 1));
  }

  kv_pool* pool_;
  int bound_;
  std::vector<int> table_;     ///< [lanes][pages of a full lane]
  std::vector<int> held_;      ///< pages of each lane
  std::vector<int> count_;     ///< entries of each lane
  std::vector<int> position_;  ///< [lanes][bound]
  int in_flight_ = 0;
};

}  // namespace tinylm
