// SPDX-License-Identifier: Apache-2.0
// The memory of an engine under an admission: one ring for each lane, and the pages of one pool.
#pragma once

#include <memory>
#include <numeric>

#include "results.hpp"
#include "trace.hpp"

namespace kvreplay {

/// A dual cache of one sequence. A row of K holds the ordinal of its entry in the trace, and a row of V one unused
/// byte: the library moves ordinals instead of rows, and the trace's rows are gathered when all is decided.
class dual_memory {
 public:
  /// The rings have whole pages for `window` tokens. A lane has up to `bound` admitted entries.
  dual_memory(trace& of, int window, int page, int bound)
      : trace_(of),
        model_(of.shape()),
        ring_((window + page - 1) / page * page),
        page_(page),
        bound_(bound),
        row_pages_((bound + page - 1) / page),
        sentinel_(lanes() * row_pages_),
        ring_rows_(std::int64_t{lanes()} * ring_),
        pool_rows_((std::int64_t{sentinel_} + 1) * page),
        position_(std::make_unique_for_overwrite<int[]>(size(std::int64_t{lanes()} * bound))),
        window_position_(size(ring_)),
        table_(size(sentinel_), sentinel_),
        held_(size(lanes())),
        count_(size(lanes())),
        free_(size(sentinel_)),
        free_count_(sentinel_) {
    std::iota(free_.rbegin(), free_.rend(), 0);
  }
  dual_memory(dual_memory const&) = delete;
  dual_memory& operator=(dual_memory const&) = delete;

  [[nodiscard]] int lanes() const { return model_.layers * model_.kv_heads; }

  [[nodiscard]] kv::dual_cache view() {
    std::int64_t const heads = model_.kv_heads;
    kv::dual_cache both;
    both.oldest = {&oldest_, 1, 0, 0};
    both.window = {.shape = model_,
                   .lanes = lanes_of({&window_count_, 1, 0, 0}, {window_position_.data(), ring_, 0, 0}, ring_),
                   .k = ring_plane(ring_rows_.keys(), name_bytes),
                   .v = ring_plane(ring_rows_.values(), 1),
                   .where = {kv::locating::ring, {&oldest_, 1, 0, 0}, ring_, 1}};
    kv::by_lane<int> const table{table_.data(), 0, heads * row_pages_, row_pages_};
    both.pages = {.entries = {.shape = model_,
                              .lanes = lanes_of({count_.data(), 0, heads, 1},
                                                {position_.get(), 0, heads * bound_, bound_}, bound_),
                              .k = pool_plane(pool_rows_.keys(), name_bytes, page_),
                              .v = pool_plane(pool_rows_.values(), 1, page_),
                              .where = kv::block_table({table.data, 0, table.layer, table.head}, page_,
                                                       std::int64_t{sentinel_} + 1)},
                  .table = table,
                  .num_pages = {held_.data(), 0, heads, 1},
                  .free_pages = {free_.data(), &free_count_, sentinel_}};
    return both;
  }

  /// The first entries of the trace as a chunk that is in no cache yet, with one list of rows for all lanes.
  [[nodiscard]] kv::cache chunk(int tokens) {
    chunk_rows_.emplace(tokens);
    for (int e = 0; e < tokens; ++e) name(chunk_rows_->keys() + std::int64_t{e} * name_bytes, e);
    chunk_count_ = tokens;
    chunk_table_.assign(size(lanes()), 0);
    return {.shape = model_,
            .lanes = lanes_of({&chunk_count_, 1, 0, 0}, {trace_.positions.data(), tokens, 0, 0}, tokens),
            .k = pool_plane(chunk_rows_->keys(), name_bytes, tokens),
            .v = pool_plane(chunk_rows_->values(), 1, tokens),
            .where = kv::block_table({chunk_table_.data(), 0, model_.kv_heads, 1}, tokens, 1)};
  }

  /// Stands for the forward: writes an entry's rows to the newest place of every lane's window.
  static void write_newest(kv::cache const& window, int ordinal) {
    for (int i = 0; i < window.lanes.size(); ++i) {
      kv::lane const this_lane = window.lanes.at(i);
      name(row(window, this_lane, *window.lanes.count.row(this_lane) - 1), ordinal);
    }
  }
  /// The trace's ordinal of an entry of the window or the pages.
  [[nodiscard]] static int ordinal(kv::cache const& part, kv::lane this_lane, int e) {
    int made = 0;
    std::memcpy(&made, row(part, this_lane, e), name_bytes);
    return made;
  }

  /// The number of entries for which pages and rings are allocated.
  [[nodiscard]] std::int64_t room_taken() const {
    return std::int64_t{lanes()} * ring_ + std::int64_t{sentinel_ - free_count_} * page_;
  }

 private:
  static constexpr int name_bytes = sizeof(int);

  /// The rows of K and V. Memory is not touched before a row is written.
  class name_rows {
   public:
    explicit name_rows(std::int64_t rows)
        : keys_(std::make_unique_for_overwrite<std::byte[]>(size(rows * name_bytes))),
          values_(std::make_unique_for_overwrite<std::byte[]>(size(rows))) {}
    [[nodiscard]] std::byte* keys() const { return keys_.get(); }
    [[nodiscard]] std::byte* values() const { return values_.get(); }

   private:
    std::unique_ptr<std::byte[]> keys_, values_;
  };

  static std::byte* row(kv::cache const& part, kv::lane this_lane, int e) {
    return part.k.row(this_lane.layer, part.where.at(this_lane, e), this_lane.head);
  }
  static void name(std::byte* to, int ordinal) { std::memcpy(to, &ordinal, name_bytes); }

  [[nodiscard]] kv::plane ring_plane(std::byte* base, std::int64_t width) const {
    kv::plane made = pool_plane(base, width, ring_);
    made.head_stride = made.unit_stride;
    made.layer_stride = made.head_stride * model_.kv_heads;
    made.unit_stride = made.layer_stride * model_.layers;
    return made;
  }
  [[nodiscard]] static kv::plane pool_plane(std::byte* base, std::int64_t width, int tokens) {
    return {.base = base,
            .element = kv::codec::opaque,
            .channels = static_cast<int>(width),
            .unit_stride = width * tokens,
            .token_stride = width,
            .channel_stride = 1};
  }
  [[nodiscard]] kv::lanes lanes_of(kv::by_lane<int> count, kv::by_lane<int> position, int bound) const {
    return {
        .layer_end = model_.layers, .heads = model_.kv_heads, .capacity = bound, .count = count, .position = position};
  }

  trace& trace_;
  kv::shape model_;
  int ring_, page_, bound_, row_pages_, sentinel_;
  name_rows ring_rows_, pool_rows_;
  std::optional<name_rows> chunk_rows_;
  std::unique_ptr<int[]> position_;
  std::vector<int> window_position_, table_, held_, count_, free_, chunk_table_;
  int oldest_ = 0, window_count_ = 0, chunk_count_ = 0, free_count_;
};

}  // namespace kvreplay
