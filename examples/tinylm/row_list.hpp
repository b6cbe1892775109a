// SPDX-License-Identifier: Apache-2.0
// The list of rows that attention reads of a sequence, in order, wherever each row is in memory.
#pragma once

#include <cstdint>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <numeric>
#include <vector>

#include "attention.hpp"

namespace tinylm {

namespace kv = kvpolicy;

/// For each lane a list of pointers to rows: those of its pages, of its window, and of tokens that are in no cache yet.
/// Attention reads the list like a cache, and a forward writes the rows of new tokens through it.
class row_list {
 public:
  row_list(kv::shape const& model, int bound) : model_(model), bound_(bound) {
    auto const all = static_cast<std::size_t>(model.layers * model.kv_heads);
    auto const entries = all * static_cast<std::size_t>(bound);
    count_.resize(all);
    keys_.resize(entries);
    values_.resize(entries);
    position_.resize(entries);
    admitted_.resize(entries);
    ordinal_.resize(static_cast<std::size_t>(bound));
    std::iota(ordinal_.begin(), ordinal_.end(), 0);
  }
  row_list(row_list&&) = default;
  row_list& operator=(row_list&&) = default;
  row_list(row_list const&) = delete;
  row_list& operator=(row_list const&) = delete;

  void clear(kv::lane this_lane) { count_[row(this_lane)] = 0; }

  /// Adds the entries [first, last) of a lane of `from` to the end of the lane's list.
  void add(kv::cache const& from, kv::lane this_lane, int first, int last, bool admitted = true) {
    int& count = count_[row(this_lane)];
    kv::expects(last - first <= bound_ - count, "row_list", "entries", last - first,
                [&] { return "there is room for " + std::to_string(bound_ - count); });
    for (int e = first; e < last; ++e, ++count) {
      kv::place const at = from.where.at(this_lane, e);
      keys_[at_of(this_lane, count)] = from.k.row(this_lane.layer, at, this_lane.head);
      values_[at_of(this_lane, count)] = from.v.row(this_lane.layer, at, this_lane.head);
      position_[at_of(this_lane, count)] = from.lanes.position.row(this_lane)[e];
      admitted_[at_of(this_lane, count)] = admitted ? 1 : 0;
    }
  }
  void add(kv::cache const& from, kv::lane this_lane, bool admitted = true) {
    add(from, this_lane, 0, *from.lanes.count.row(this_lane), admitted);
  }

  [[nodiscard]] int count(kv::lane this_lane) const { return count_[row(this_lane)]; }
  /// The number of entries of all lanes.
  [[nodiscard]] std::int64_t entries() const { return std::accumulate(count_.begin(), count_.end(), std::int64_t{0}); }
  /// One writable byte for each entry of a lane: not 0 if it was admitted.
  [[nodiscard]] std::uint8_t* admitted(kv::lane this_lane) { return admitted_.data() + at_of(this_lane, 0); }

  [[nodiscard]] kv::cache view() {
    std::int64_t const heads = model_.kv_heads;
    std::int64_t const row = std::int64_t{model_.head_dim} * 4;
    auto const rows = [&](std::vector<std::byte*> const& pointers) {
      return kv::plane{.element = kv::codec::f32,
                       .channels = model_.head_dim,
                       .token_stride = row,
                       .channel_stride = 4,
                       .bases = {pointers.data(), heads * bound_, 1, bound_}};
    };
    return {.shape = model_,
            .lanes = {.layer_end = model_.layers,
                      .heads = model_.kv_heads,
                      .capacity = bound_,
                      .count = {count_.data(), 0, heads, 1},
                      .position = {position_.data(), 0, heads * bound_, bound_}},
            .k = rows(keys_),
            .v = rows(values_),
            .where = kv::slot_map({ordinal_.data()}, bound_)};
  }
  [[nodiscard]] vertical_slash mask(int window) const {
    return {{admitted_.data(), 0, std::int64_t{model_.kv_heads} * bound_, bound_}, window};
  }

 private:
  [[nodiscard]] std::size_t row(kv::lane this_lane) const {
    return static_cast<std::size_t>(this_lane.layer * model_.kv_heads + this_lane.head);
  }
  [[nodiscard]] std::size_t at_of(kv::lane this_lane, int entry) const {
    return row(this_lane) * static_cast<std::size_t>(bound_) + static_cast<std::size_t>(entry);
  }

  kv::shape model_;
  int bound_;
  std::vector<int> count_;                 ///< [lanes]
  std::vector<std::byte*> keys_, values_;  ///< [lanes][bound]
  std::vector<int> position_;              ///< [lanes][bound]
  std::vector<std::uint8_t> admitted_;     ///< [lanes][bound]
  std::vector<int> ordinal_;               ///< 0, 1, 2, ...
};

}  // namespace tinylm
