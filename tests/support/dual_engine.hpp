// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

struct dual_options {
  kv::shape model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4};
  int sequences = 1;
  int rows = 16;  ///< of the ring
  int page = 4;
  int pages = 64;       ///< of the pool that are not local
  int bound = 64;       ///< admitted entries of a lane
  int most_fresh = 64;  ///< tokens of a chunk
};

/// Sequences in a pool of pages: each lane's ring in local pages of its own, then pages for whoever takes them, the
/// last one the sentinel. Rows are fingerprints of lane and position.
class dual_engine {
 public:
  explicit dual_engine(dual_options const& how) : how_(how) {
    int const local = lanes() * how.rows / how.page;
    all_pages_ = local + how.pages + 1;
    auto const floats = as_size(all_pages_) * as_size(how.page) * as_size(how.model.head_dim);
    k_.resize(floats);
    v_.resize(floats);
    for (int page = all_pages_ - 2; page >= local; --page) free_.push_back(page);
    free_count_ = how.pages;
    table_.assign(as_size(lanes()) * as_size(row_pages()), sentinel());
    held_.resize(as_size(lanes()));
    count_.resize(as_size(lanes()));
    position_.resize(as_size(lanes()) * as_size(how.bound));
    window_position_.resize(as_size(how.sequences) * as_size(how.rows));
    for (auto* each : {&window_count_, &oldest_, &in_flight_, &fresh_count_}) each->resize(as_size(how.sequences));
    fresh_k_.resize(as_size(lanes()) * as_size(how.most_fresh) * as_size(how.model.head_dim));
    fresh_v_ = fresh_k_;
    fresh_position_.resize(as_size(how.sequences) * as_size(how.most_fresh));
  }
  dual_engine(dual_engine const&) = delete;
  dual_engine& operator=(dual_engine const&) = delete;

  [[nodiscard]] int lanes() const { return how_.sequences * lanes_of_one(); }
  [[nodiscard]] int sentinel() const { return all_pages_ - 1; }
  [[nodiscard]] int free_pages() const { return free_count_; }
  [[nodiscard]] int held_pages() const { return std::accumulate(held_.begin(), held_.end(), 0); }
  [[nodiscard]] std::vector<int>& free_list() { return free_; }

  kv::dual_cache view() {
    std::int64_t const row = std::int64_t{how_.model.head_dim} * 4;
    auto const planes = [&](std::vector<float>& of, bool ring) {
      kv::plane made{.base = reinterpret_cast<std::byte*>(of.data()),
                     .element = kv::codec::f32,
                     .channels = how_.model.head_dim,
                     .unit_stride = how_.page * row,
                     .token_stride = row,
                     .channel_stride = 4};
      if (!ring) return made;
      made.head_stride = how_.rows * row;
      made.layer_stride = made.head_stride * how_.model.kv_heads;
      made.unit_stride = made.layer_stride * how_.model.layers;
      return made;
    };
    kv::dual_cache both;
    both.window = {
        .shape = how_.model,
        .lanes = lanes_of({window_count_.data(), 1, 0, 0}, {window_position_.data(), how_.rows, 0, 0}, how_.rows),
        .k = planes(k_, true),
        .v = planes(v_, true),
        .where = {kv::locating::ring, {oldest_.data(), 1, 0, 0}, how_.rows, how_.sequences}};
    both.window.lanes.in_flight = in_flight_.data();
    both.oldest = {oldest_.data(), 1, 0, 0};
    std::int64_t const heads = how_.model.kv_heads;
    std::int64_t const all = lanes_of_one();
    kv::by_lane<int const> const read{table_.data(), all * row_pages(), heads * row_pages(), row_pages()};
    both.pages.entries = {
        .shape = how_.model,
        .lanes = lanes_of({count_.data(), all, heads, 1},
                          {position_.data(), all * how_.bound, heads * how_.bound, how_.bound}, how_.bound),
        .k = planes(k_, false),
        .v = planes(v_, false),
        .where = kv::block_table(read, how_.page, all_pages_)};
    both.pages.table = {table_.data(), all * row_pages(), heads * row_pages(), row_pages()};
    both.pages.num_pages = {held_.data(), all, heads, 1};
    both.pages.free_pages = {free_.data(), &free_count_, sentinel()};
    return both;
  }

  /// A chunk of rows outside of the cache: so many tokens of each sequence, from its position on.
  kv::cache chunk(int tokens, int position) {
    return chunk(std::vector<int>(as_size(how_.sequences), tokens),
                 std::vector<int>(as_size(how_.sequences), position));
  }
  kv::cache chunk(std::vector<int> const& tokens, std::vector<int> const& position) {
    fresh_count_ = tokens;
    for (int s = 0; s < how_.sequences; ++s) {
      auto const first = fresh_position_.begin() + s * how_.most_fresh;
      std::iota(first, first + tokens[as_size(s)], position[as_size(s)]);
    }
    std::int64_t const row = std::int64_t{how_.model.head_dim} * 4;
    auto const plane = [&](std::vector<float>& of) {
      std::int64_t const head = how_.most_fresh * row;
      return kv::plane{.base = reinterpret_cast<std::byte*>(of.data()),
                       .element = kv::codec::f32,
                       .channels = how_.model.head_dim,
                       .layer_stride = head * how_.model.kv_heads,
                       .unit_stride = head * lanes_of_one(),
                       .token_stride = row,
                       .head_stride = head,
                       .channel_stride = 4};
    };
    kv::cache made{.shape = how_.model,
                   .lanes = lanes_of({fresh_count_.data(), 1, 0, 0}, {fresh_position_.data(), how_.most_fresh, 0, 0},
                                     how_.most_fresh),
                   .k = plane(fresh_k_),
                   .v = plane(fresh_v_),
                   .where = kv::identity_map(how_.most_fresh, how_.sequences)};
    for (int i = 0; i < lanes(); ++i) {
      kv::lane const this_lane = made.lanes.at(i);
      for (int e = 0; e < tokens[as_size(this_lane.sequence)]; ++e)
        write(made, this_lane, e, position[as_size(this_lane.sequence)] + e);
    }
    return made;
  }

  /// What the model does: the rows of one entry, written through the library's own view of where it lives.
  static void write(kv::cache const& in, kv::lane this_lane, int ordinal, int position) {
    kv::place const at = in.where.at(this_lane, ordinal);
    for (bool const key : {true, false}) {
      kv::plane const& rows = key ? in.k : in.v;
      auto* const row = reinterpret_cast<float*>(rows.row(this_lane.layer, at, this_lane.head));
      for (int d = 0; d < rows.channels; ++d) row[d] = mark(this_lane, position, d, key);
    }
  }
  /// True if the rows of an entry are those of its lane and position.
  static bool true_rows(kv::cache const& in, kv::lane this_lane, int ordinal) {
    kv::place const at = in.where.at(this_lane, ordinal);
    int const position = in.lanes.position.row(this_lane)[ordinal];
    for (bool const key : {true, false}) {
      kv::plane const& rows = key ? in.k : in.v;
      auto const* const row = reinterpret_cast<float const*>(rows.row(this_lane.layer, at, this_lane.head));
      for (int d = 0; d < rows.channels; ++d) {
        if (row[d] != mark(this_lane, position, d, key)) return false;
      }
    }
    return true;
  }

  /// Everything that a call could have changed.
  struct snapshot {
    std::vector<float> k, v;
    std::vector<std::vector<int>> tables;
    int free_pages = 0;
    friend bool operator==(snapshot const&, snapshot const&) = default;
  };
  [[nodiscard]] snapshot save() const {
    return {k_,
            v_,
            {free_, table_, held_, count_, position_, window_position_, window_count_, oldest_, in_flight_},
            free_count_};
  }

  /// Positions that a lane sees, ascending: its pages, then its window.
  static std::vector<int> seen(kv::dual_cache const& both, kv::lane this_lane) {
    std::vector<int> all;
    for (kv::cache const* part : {&both.pages.entries, &both.window}) {
      int const* const position = part->lanes.position.row(this_lane);
      all.insert(all.end(), position, position + *part->lanes.count.row(this_lane));
    }
    return all;
  }

 private:
  [[nodiscard]] int lanes_of_one() const { return how_.model.layers * how_.model.kv_heads; }
  static float mark(kv::lane this_lane, int position, int d, bool key) {
    int const lane = this_lane.sequence * 16 + this_lane.layer * 4 + this_lane.head;
    return static_cast<float>(position % 8192 * 128 + lane * 2 + (key ? 1 : 0)) + 0.0625f * static_cast<float>(d);
  }
  [[nodiscard]] int row_pages() const { return (how_.bound + how_.page - 1) / how_.page; }
  [[nodiscard]] kv::lanes lanes_of(kv::by_lane<int> count, kv::by_lane<int> position, int bound) const {
    return {.sequences = how_.sequences,
            .layer_begin = 0,
            .layer_end = how_.model.layers,
            .heads = how_.model.kv_heads,
            .capacity = bound,
            .count = count,
            .position = position};
  }

  dual_options how_;
  int all_pages_ = 0, free_count_ = 0;
  std::vector<float> k_, v_, fresh_k_, fresh_v_;
  std::vector<int> free_, table_, held_, count_, position_, window_position_, fresh_position_;
  std::vector<int> window_count_, oldest_, in_flight_, fresh_count_;  ///< one a sequence
};

}  // namespace kvpolicy_test
