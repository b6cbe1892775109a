// SPDX-License-Identifier: Apache-2.0
// The layer of a cache that benchmarks of a scorer decide about.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE::bench::detail {

/// How the rows of a lane lie in memory: all heads of a token in turn, all tokens of a head in turn, rows of any order
/// that a slot map finds, or pages of 16 tokens in any order.
enum class layout { nhd, hnd, slots, pages };

[[nodiscard]] constexpr char const* name_of(layout of) {
  constexpr char const* names[] = {"nhd", "hnd", "slots", "pages"};
  return names[static_cast<int>(of)];
}

/// What a row of the report is about.
struct shape_of_row {
  int entries = 4096;
  codec element = codec::f32;
  layout rows = layout::nhd;
  int threads = 1;
};

/// One layer of random rows, and the queries of its last tokens.
class layer {
 public:
  static constexpr shape model{.layers = 1, .query_heads = 32, .kv_heads = 8, .head_dim = 128};
  static constexpr int window = 32, page = 16;

  explicit layer(shape_of_row const& of)
      : of_(of),
        k_(bytes_of_plane(), std::byte{}),
        v_(k_),
        table_(places(), 0),
        counts_(model.kv_heads, 0),
        positions_(static_cast<std::size_t>(model.kv_heads) * static_cast<std::size_t>(of.entries), 0) {
    fill(k_), fill(v_);
    for (std::size_t i = 0; i < table_.size(); ++i) table_[i] = static_cast<int>(i);
    for (std::size_t i = table_.size(); i-- > 1;) std::swap(table_[i], table_[next() % (i + 1)]);
    for (int i = 0; i < model.query_heads * window * model.head_dim; ++i) queries_.push_back(4 * random());
    for (int i = 0; i < window; ++i) query_positions_.push_back(of.entries - window + i);
  }
  layer(layer const&) = delete;  // views point into this object
  layer& operator=(layer const&) = delete;

  /// Forgets the entries; their rows stay.
  void clear() { std::fill(counts_.begin(), counts_.end(), 0); }
  /// The cache; it is empty until its entries are appended.
  [[nodiscard]] kvpolicy::cache view() {
    contiguous_memory const memory{.k = k_.data(),
                                   .v = v_.data(),
                                   .element = of_.element,
                                   .shape = model,
                                   .capacity = of_.entries,
                                   .counts = counts_.data(),
                                   .positions = positions_.data(),
                                   .order = of_.rows == layout::hnd ? axis_order::hnd : axis_order::nhd};
    kvpolicy::cache made = contiguous_cache(memory);
    if (of_.rows == layout::slots) {
      for (plane* rows : {&made.k, &made.v}) rows->unit_stride = std::exchange(rows->token_stride, 0);
      made.where = slot_map({table_.data()}, of_.entries);
    } else if (of_.rows == layout::pages) {
      for (plane* rows : {&made.k, &made.v}) rows->unit_stride = rows->token_stride * page;
      made.where = block_table({table_.data()}, page, of_.entries / page);
    }
    return made;
  }
  [[nodiscard]] query_view queries() const {
    return queries_of(queries_.data(), model, window, query_positions_.data(), {.order = axis_order::hnd});
  }
  [[nodiscard]] std::vector<std::byte> const& keys() const { return k_; }
  [[nodiscard]] std::vector<std::byte> const& values() const { return v_; }
  [[nodiscard]] std::vector<int> const& table() const { return table_; }
  [[nodiscard]] std::vector<float> const& query_numbers() const { return queries_; }
  [[nodiscard]] std::vector<int> const& query_positions() const { return query_positions_; }
  [[nodiscard]] std::size_t bytes_of_plane() const {
    return static_cast<std::size_t>(of_.entries) *
           static_cast<std::size_t>(model.kv_heads * model.head_dim * kvpolicy::bytes_of(of_.element));
  }
  [[nodiscard]] int entries() const { return of_.entries; }
  [[nodiscard]] double bytes_of_queries() const { return 4.0 * static_cast<double>(queries_.size()); }

 private:
  /// Units that a table names: a row each, or a page.
  [[nodiscard]] std::size_t places() const {
    return static_cast<std::size_t>(of_.rows == layout::pages ? of_.entries / page : of_.entries);
  }
  [[nodiscard]] std::size_t next() {
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(seed_ >> 33);
  }
  [[nodiscard]] float random() { return static_cast<float>(next() % (1u << 20)) / static_cast<float>(1 << 19) - 1.0f; }
  /// Random numbers in [-1, 1): a few megabytes of them, repeated.
  void fill(std::vector<std::byte>& to) {
    auto const width = static_cast<std::size_t>(kvpolicy::bytes_of(of_.element));
    std::size_t const drawn = std::min(to.size(), ((std::size_t{1} << 20) + 1096) * width);
    for (std::size_t at = 0; at < drawn; at += width) store(of_.element, random(), to.data() + at);
    for (std::size_t at = drawn; at < to.size(); at += drawn)
      std::memcpy(to.data() + at, to.data(), std::min(drawn, to.size() - at));
  }

  shape_of_row of_;
  std::uint64_t seed_ = 1;
  std::vector<std::byte> k_, v_;
  std::vector<int> table_, counts_, positions_;
  std::vector<float> queries_;
  std::vector<int> query_positions_;
};

}  // namespace KVPOLICY_NAMESPACE::bench::detail
