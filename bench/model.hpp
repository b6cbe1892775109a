// SPDX-License-Identifier: Apache-2.0
// The cache and the query rows of a whole model, in any element type.
#pragma once

#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <vector>

#include "distributions.hpp"

namespace bench {

/// 36 layers of 8 KV heads with 4 query heads each, head size 128: a typical 8B model.
inline constexpr kv::shape whole_model{.layers = 36, .query_heads = 32, .kv_heads = 8, .head_dim = 128};
inline constexpr kv::shape one_layer{.layers = 1, .query_heads = 32, .kv_heads = 8, .head_dim = 128};
/// A model with one query head per KV head.
inline constexpr kv::shape one_layer_ungrouped{.layers = 1, .query_heads = 8, .kv_heads = 8, .head_dim = 128};

/// Fills memory with random elements in [-scale, scale]: a few megabytes, which are repeated at varying distances.
inline void fill_elements(memory const& to, kv::codec element, float scale, std::uint64_t seed) {
  noise from(seed);
  auto const width = static_cast<std::size_t>(kv::bytes_of(element));
  std::size_t const drawn = std::min(to.size() / width, (std::size_t{1} << 21) + 8 * 137);
  for (std::size_t i = 0; i < drawn; ++i) kv::store(element, (2 * from.uniform() - 1) * scale, to.data() + i * width);
  for (std::size_t at = drawn * width; at < to.size(); at += drawn * width)
    std::memcpy(to.data() + at, to.data(), std::min(drawn * width, to.size() - at));
}

/// The outer axis of a layer: HND, in which lanes are apart, or NHD, in which all heads of a token are adjacent.
enum class rows_by { head, token };

/// Rows [layer][head][entry][dim], or [layer][entry][head][dim], in `planes` arrays: keys, values and further planes
/// that move with them.
class model_cache {
 public:
  static double bytes(kv::shape const& model, int entries, kv::codec element, int planes = 2) {
    return 1.0 * model.layers * model.kv_heads * entries * (planes * model.head_dim * kv::bytes_of(element) + 4);
  }

  model_cache(kv::shape const& model, int entries, kv::codec element, int planes = 2, rows_by order = rows_by::head)
      : model_(model),
        entries_(entries),
        element_(element),
        order_(order),
        counts_(static_cast<std::size_t>(model.layers * model.kv_heads)),
        positions_(counts_.size() * static_cast<std::size_t>(entries)) {
    auto const row = static_cast<std::size_t>(model.head_dim * kv::bytes_of(element));
    for (int i = 0; i < planes; ++i) {
      rows_.emplace_back(positions_.size() * row);
      fill_elements(rows_.back(), element, 1, static_cast<std::uint64_t>(i) + 1);
    }
    for (int i = 2; i < planes; ++i) more_.push_back(plane(i));
    reset();
  }
  model_cache(model_cache const&) = delete;  // views point into this object
  model_cache& operator=(model_cache const&) = delete;

  /// Restores all entries and their positions. Rows stay where the last applier moved them.
  void reset() {
    std::fill(counts_.begin(), counts_.end(), entries_);
    for (std::size_t i = 0; i < positions_.size(); ++i)
      positions_[i] = static_cast<int>(i % static_cast<std::size_t>(entries_));
  }

  kv::cache view() {
    kv::cache made{.shape = model_, .k = plane(0), .v = plane(1), .where = kv::identity_map(entries_), .more = {more_}};
    auto const heads = std::int64_t{model_.kv_heads};
    made.lanes = {.layer_end = model_.layers,
                  .heads = model_.kv_heads,
                  .capacity = entries_,
                  .count = {counts_.data(), 0, heads, 1},
                  .position = {positions_.data(), 0, heads * entries_, entries_}};
    return made;
  }

  [[nodiscard]] kv::codec element() const { return element_; }
  [[nodiscard]] int count(int lane) const { return counts_[static_cast<std::size_t>(lane)]; }
  [[nodiscard]] memory const& keys() const { return rows_.front(); }
  /// The bytes of the rows of one array.
  [[nodiscard]] std::size_t plane_bytes() const { return rows_.front().size(); }

 private:
  [[nodiscard]] kv::plane plane(int i) const {
    std::int64_t const width = kv::bytes_of(element_);
    std::int64_t const row = width * model_.head_dim;
    return {.base = rows_[static_cast<std::size_t>(i)].data(),
            .element = element_,
            .channels = model_.head_dim,
            .layer_stride = row * entries_ * model_.kv_heads,
            .token_stride = order_ == rows_by::head ? row : row * model_.kv_heads,
            .head_stride = order_ == rows_by::head ? row * entries_ : row,
            .channel_stride = width};
  }

  kv::shape model_;
  int entries_;
  kv::codec element_;
  rows_by order_;
  std::vector<memory> rows_;
  std::vector<kv::plane> more_;
  std::vector<int> counts_;
  std::vector<int> positions_;
};

/// The last `rows` query rows of every layer, [layer][head][row][dim]. Their scale gives logits with standard deviation
/// 2, so a few keys stand out and most do not.
class model_queries {
 public:
  model_queries(kv::shape const& model, int entries, int rows, kv::codec element)
      : model_(model),
        rows_(rows),
        element_(element),
        values_(static_cast<std::size_t>(model.layers * model.query_heads) * static_cast<std::size_t>(rows) *
                static_cast<std::size_t>(model.head_dim * kv::bytes_of(element))) {
    fill_elements(values_, element, 6, 11);
    for (int r = 0; r < rows; ++r) position_.push_back(entries - rows + r);
  }

  /// If `causal`, a row sees the entries up to its own position; otherwise it sees all.
  [[nodiscard]] kv::query_view view(bool causal = true) const {
    std::int64_t const row = std::int64_t{model_.head_dim} * kv::bytes_of(element_);
    kv::query_view made{.base = values_.data(),
                        .element = element_,
                        .dims = model_.head_dim,
                        .layer = row * rows_ * model_.query_heads,
                        .head = row * rows_,
                        .row = row,
                        .heads = model_.query_heads,
                        .rows = rows_};
    if (causal) made.position = {position_.data()};
    if (!lse_.empty()) made.lse = {lse_.data(), 0, std::int64_t{rows_} * model_.query_heads, rows_};
    return made;
  }
  [[nodiscard]] kv::queries signal() const { return {view()}; }
  [[nodiscard]] kv::recent_queries recent() const { return {view()}; }

  /// Sets the LSE that later views carry: [layer][head][row].
  void give_lse(std::vector<float> values) { lse_ = std::move(values); }

 private:
  kv::shape model_;
  int rows_;
  kv::codec element_;
  memory values_;
  std::vector<int> position_;
  std::vector<float> lse_;
};

}  // namespace bench
