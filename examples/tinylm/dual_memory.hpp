// SPDX-License-Identifier: Apache-2.0
// The memory of a sequence under a cache policy: pages, and a ring for each lane if the policy has an admission.
#pragma once

#include <kvpolicy/core/dual_cache.hpp>
#include <vector>

#include "kv_pool.hpp"

namespace tinylm {

/// One array of pages of 16 keys, and one of values. The pages of each lane's ring come first and are adjacent. Any
/// lane may take the other pages, except the last one, which is the sentinel.
class dual_memory {
 public:
  static constexpr int page_tokens = kv_pool::page_tokens;

  /// - in: `window`, the number of recent tokens that every lane sees whatever it admits; a ring has whole pages for
  ///   them. With 0 there are no rings, and `view().pages` is the whole cache. `bound`: the largest number of entries
  ///   of a lane in pages.
  dual_memory(kv::shape const& model, int window, int bound)
      : model_(model), ring_((window + page_tokens - 1) / page_tokens * page_tokens), bound_(bound) {
    kv::expects(window >= 0, "dual_memory", "window", window, "a count cannot be negative");
    kv::expects(bound >= 1, "dual_memory", "bound", bound, "a lane has room for at least one entry");
    int const local = lanes() * ring_ / page_tokens;
    sentinel_ = local + lanes() * row_pages();
    auto const size = [](int n) { return static_cast<std::size_t>(n); };
    k_.resize(size(sentinel_ + 1) * size(page_tokens) * size(model.head_dim));
    v_.resize(k_.size());
    for (int page = sentinel_ - 1; page >= local; --page) free_.push_back(page);
    free_count_.front() = static_cast<int>(free_.size());
    table_.assign(size(lanes()) * size(row_pages()), sentinel_);
    num_pages_.resize(size(lanes()));
    count_.resize(size(lanes()));
    position_.resize(size(lanes()) * size(bound));
    window_position_.resize(size(ring_));
  }
  dual_memory(dual_memory&&) = delete;  // views point at it
  dual_memory& operator=(dual_memory&&) = delete;

  /// The view that kvpolicy reads and edits.
  [[nodiscard]] kv::dual_cache view() {
    std::int64_t const heads = model_.kv_heads;
    kv::by_lane<int> const table{table_.data(), 0, heads * row_pages(), row_pages()};
    kv::by_lane<int> const oldest{oldest_.data(), 1, 0, 0};
    kv::dual_cache both;
    both.window = {.shape = model_,
                   .lanes = lanes_of({window_count_.data(), 1, 0, 0}, {window_position_.data(), ring_, 0, 0}, ring_),
                   .k = ring_rows(k_),
                   .v = ring_rows(v_),
                   .where = {kv::locating::ring, {oldest_.data(), 1, 0, 0}, ring_, 1}};
    both.oldest = oldest;
    both.pages.entries = {
        .shape = model_,
        .lanes = lanes_of({count_.data(), 0, heads, 1}, {position_.data(), 0, heads * bound_, bound_}, bound_),
        .k = pages(k_),
        .v = pages(v_),
        .where = kv::block_table({table.data, 0, table.layer, table.head}, page_tokens, sentinel_ + 1)};
    both.pages.table = table;
    both.pages.num_pages = {num_pages_.data(), 0, heads, 1};
    both.pages.free_pages = {free_.data(), free_count_.data(), sentinel_};
    return both;
  }

  /// Gives every lane the pages for `tokens` more entries, for policies that admit everything.
  /// - throws: `invalid_argument` if a lane would exceed the bound. Nothing is changed then.
  void reserve(int tokens) {
    for (int const count : count_) {
      kv::expects(tokens <= bound_ - count, "dual_memory::reserve", "tokens", tokens,
                  [&] { return "a lane holds " + std::to_string(count) + " of at most " + std::to_string(bound_); });
    }
    for (int lane = 0; lane < lanes(); ++lane) {
      auto const row = static_cast<std::size_t>(lane);
      int* const table = table_.data() + std::ptrdiff_t{lane} * row_pages();
      for (int& pages = num_pages_[row]; pages * page_tokens < count_[row] + tokens; ++pages) {
        table[pages] = free_[static_cast<std::size_t>(--free_count_.front())];
      }
    }
  }

  /// The entries of all lanes in window and pages, and the bytes of their keys and values.
  [[nodiscard]] std::int64_t live_entries() const {
    std::int64_t all = std::int64_t{window_count_.front()} * lanes();
    for (int const count : count_) all += count;
    return all;
  }
  [[nodiscard]] std::int64_t live_bytes() const { return live_entries() * 2 * row_bytes(); }
  [[nodiscard]] int free_pages() const { return free_count_.front(); }

 private:
  [[nodiscard]] int lanes() const { return model_.layers * model_.kv_heads; }
  [[nodiscard]] int row_pages() const { return (bound_ + page_tokens - 1) / page_tokens; }
  [[nodiscard]] std::int64_t row_bytes() const { return std::int64_t{model_.head_dim} * 4; }

  [[nodiscard]] kv::plane pages(std::vector<float>& of) const {
    return {.base = reinterpret_cast<std::byte*>(of.data()),
            .element = kv::codec::f32,
            .channels = model_.head_dim,
            .unit_stride = page_tokens * row_bytes(),
            .token_stride = row_bytes(),
            .channel_stride = 4};
  }
  [[nodiscard]] kv::plane ring_rows(std::vector<float>& of) const {
    kv::plane rows = pages(of);
    rows.unit_stride = 0;  // one sequence
    rows.head_stride = ring_ * row_bytes();
    rows.layer_stride = rows.head_stride * model_.kv_heads;
    return rows;
  }
  [[nodiscard]] kv::lanes lanes_of(kv::by_lane<int> count, kv::by_lane<int> position, int bound) const {
    return {
        .layer_end = model_.layers, .heads = model_.kv_heads, .capacity = bound, .count = count, .position = position};
  }

  kv::shape model_;
  int ring_;  ///< rows of a lane's ring
  int bound_;
  int sentinel_ = 0;
  // One number each. They are on the heap, because a device may read them.
  std::vector<int> free_count_ = {0};
  std::vector<int> oldest_ = {0};
  std::vector<int> window_count_ = {0};
  std::vector<float> k_, v_;  ///< [pages][16][D]
  std::vector<int> free_;
  std::vector<int> table_;      ///< [lanes][pages of a full lane]
  std::vector<int> num_pages_;  ///< [lanes], the number of pages
  std::vector<int> count_;      ///< [lanes], the number of entries in pages
  std::vector<int> position_;   ///< [lanes][bound]
  std::vector<int> window_position_;
};

}  // namespace tinylm
