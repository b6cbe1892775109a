// SPDX-License-Identifier: Apache-2.0
// Computes a residual head for a few hundred entries.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/host/folded_head.hpp>
#include <kvpolicy/ops/host/folded_span.hpp>
#include <kvpolicy/ops/host/kernels/residual.hpp>
#include <kvpolicy/ops/residual.hpp>
#include <limits>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// Computes the head for up to `entries_of_a_task` entries.
class residual_task {
 public:
  using sizes = residual_sizes;
  static constexpr int heads = residual_head::heads;

  residual_task(host_executor const& exec, residual_head const& head, folded_head const& folded, float* temp_storage)
      : products_(exec.simd_level()),
        kernels_(residual_of_isa[exec.simd_level()]),
        head_(head),
        folded_(folded),
        head_width_(head.width / heads),
        padded_(sizes::padded(head_width_)),
        query_(take_floats(temp_storage, sizes::entries_of_a_task * folded.query.padded())),
        sum_of_values_(take_floats(temp_storage, sizes::entries_of_a_task * heads * padded_)),
        row_max_(take_floats(temp_storage, sizes::entries_of_a_task * heads)),
        sum_(take_floats(temp_storage, sizes::entries_of_a_task * heads)),
        keys_(take_floats(temp_storage, sizes::span_of_a_step * std::int64_t{head.width})),
        values_(take_floats(temp_storage, sizes::span_of_a_step * heads * padded_)),
        first_(take_floats(temp_storage, sizes::rows_of_a_tile * sizes::block)),
        second_(take_floats(temp_storage, sizes::rows_of_a_tile * sizes::block)),
        rule_(take_floats(temp_storage, sizes::rows_of_a_tile)),
        shrink_(take_floats(temp_storage, sizes::rows_of_a_tile)),
        joined_(take_floats(temp_storage, sizes::rows_of_a_tile * sizes(head, 0).joined())),
        projected_(take_floats(temp_storage, sizes::rows_of_a_tile * folded.key.padded())) {}

  /// Computes the entries of these features (`count` rows), which attend to nothing, and whose context is 0.
  void run(float const* features, int count, float* scores) {
    begin(features, count, scores);
    for (int e = 0; e < count; e += sizes::rows_of_a_tile) {
      take_rules(e);
      finish(e, folded_.hidden, features + std::ptrdiff_t{e} * head_.dims, head_.dims);
    }
  }
  /// Computes entries that attend to a short span.
  void run(float const* features, int count, folded_span const& span, float* scores) {
    begin(features, count, scores);
    for (int e = 0; e < count; e += sizes::rows_of_a_tile) {
      take_rules(e);
      join_features(e, span.hidden.in);
      for (int h = 0; h < heads; ++h) {
        multiply_features(e, span.logits, h);
        std::ptrdiff_t const at = std::ptrdiff_t{h} * sizes::block;
        kernels_.softmax_block(first_, rows_at(e), span.logits.constant + at, span.logits.slope + at, rule_,
                               joined_ + head_.dims + at, span.hidden.in);
      }
      finish(e, span.hidden, joined_, span.hidden.in);
    }
  }
  /// Computes entries that attend to `span_rows` entries from `span` on.
  void run(float const* features, int count, float const* span, int span_rows, float* scores) {
    begin(features, count, scores);
    begin_attention();
    for (int e = 0; e < count; e += sizes::rows_of_a_tile) make_queries(e);
    for (int s = 0; s < span_rows; s += sizes::span_of_a_step) {
      int const rows = std::min(sizes::span_of_a_step, span_rows - s);
      use(span + std::ptrdiff_t{s} * head_.dims, rows);
      for (int e = 0; e < count; e += sizes::rows_of_a_tile) attend(e, rows, s == 0);
    }
    for (int e = 0; e < count; e += sizes::rows_of_a_tile) {
      take_rules(e);
      join_features(e, folded_.hidden.in);
      join_contexts(e);
      finish(e, folded_.hidden, joined_, folded_.hidden.in);
    }
  }

 private:
  [[nodiscard]] int rows_at(int e) const { return std::min(sizes::rows_of_a_tile, count_ - e); }

  void begin(float const* features, int count, float* scores) {
    features_ = features;
    count_ = count;
    scores_ = scores;
  }

  /// Multiplies the features of a tile of entries.
  void multiply_features(int e, packed_rows const& by, std::int64_t block) {
    int const rows = rows_at(e);
    products_.multiply(features_ + std::ptrdiff_t{e} * head_.dims, head_.dims, rows, by.in, by.block(block), 1, first_,
                       std::min(sizes::rows_of_a_tile, count_ - e - rows));
  }

  void begin_attention() {
    std::fill_n(row_max_, sizes::entries_of_a_task * heads, -std::numeric_limits<float>::infinity());
    std::fill_n(sum_, sizes::entries_of_a_task * heads, 0.0f);
  }
  /// Projects a part of the span, unless it is the one that was projected last.
  void use(float const* span, int rows) {
    if (span != std::exchange(projected_span_, span)) project(span, rows);
  }

  void take_rules(int e) {
    for (int i = 0; i < rows_at(e); ++i) {
      rule_[i] = scores_[e + i];
      if (rule_[i] == -std::numeric_limits<float>::infinity()) rule_[i] = 0;
    }
  }

  void make_queries(int e) {
    int const rows = rows_at(e);
    packed_rows const& by = folded_.query;
    take_rules(e);
    for (std::int64_t b = 0; b < by.blocks(); ++b) {
      multiply_features(e, by, b);
      std::int64_t const at = b * sizes::block;
      kernels_.add_bias(first_, rows, by.constant + at, by.slope + at, rule_, query_ + e * by.padded() + at,
                        by.padded());
    }
  }

  /// Projects one step's entries of the span to keys [head][block of entries][head width][32] and to values
  /// [head][block of columns][entries][32].
  void project(float const* span, int rows) {
    std::fill_n(keys_, sizes::span_of_a_step * std::int64_t{head_.width}, 0.0f);
    std::fill_n(values_, sizes::span_of_a_step * heads * padded_, 0.0f);
    for (int s = 0; s < rows; s += sizes::rows_of_a_tile) {
      int const count = std::min(sizes::rows_of_a_tile, rows - s);
      project_tile(folded_.key, span + std::ptrdiff_t{s} * head_.dims, count);
      for (int i = 0; i < count; ++i) put_key(projected_ + i * folded_.key.padded(), s + i);
      project_tile(folded_.value, span + std::ptrdiff_t{s} * head_.dims, count);
      for (int i = 0; i < count; ++i) put_value(projected_ + i * folded_.value.padded(), s + i);
    }
  }
  void project_tile(packed_rows const& by, float const* rows, int count) {
    for (std::int64_t b = 0; b < by.blocks(); ++b) {
      products_.multiply(rows, head_.dims, count, by.in, by.block(b), 1, first_);
      for (int i = 0; i < count; ++i) {
        for (int o = 0; o < sizes::block; ++o) {
          projected_[i * by.padded() + b * sizes::block + o] =
              first_[i * sizes::block + o] + by.constant[b * sizes::block + o];
        }
      }
    }
  }
  [[nodiscard]] float* keys_of(std::int64_t head, int row) const {
    return keys_ + head * sizes::span_of_a_step * head_width_ + row / sizes::block * sizes::block * head_width_;
  }
  void put_key(float const* from, int row) {
    for (std::int64_t h = 0; h < heads; ++h, from += head_width_) {
      float* const to = keys_of(h, row) + row % sizes::block;
      for (std::int64_t c = 0; c < head_width_; ++c) to[c * sizes::block] = from[c];
    }
  }
  [[nodiscard]] float* values_of(std::int64_t head, std::int64_t columns) const {
    return values_ + (head * padded_ + columns) * sizes::span_of_a_step;
  }
  void put_value(float const* from, int row) {
    for (std::int64_t h = 0; h < heads; ++h, from += head_width_) {
      for (std::int64_t c = 0; c < head_width_; c += sizes::block) {
        std::copy_n(from + c, std::min<std::int64_t>(sizes::block, head_width_ - c),
                    values_of(h, c) + std::ptrdiff_t{row} * sizes::block);
      }
    }
  }

  /// Computes the attention of a tile of entries to one step's entries of the span. `is_first`: there are no sums yet.
  void attend(int e, int span_rows, bool is_first) {
    int const rows = rows_at(e);
    std::int64_t const row = folded_.query.padded();
    float const scale = 1.0f / std::sqrt(static_cast<float>(head_width_));
    for (int h = 0; h < heads; ++h) {
      std::ptrdiff_t const at = std::ptrdiff_t{h} * sizes::entries_of_a_task + e;
      for (int s = 0; s < span_rows; s += sizes::block) {
        products_.multiply(query_ + e * row + h * head_width_, row, rows, head_width_, keys_of(h, s), scale, first_);
        kernels_.advance_softmax(first_, rows, std::min(sizes::block, span_rows - s), row_max_ + at, sum_ + at,
                                 shrink_);
        for (std::int64_t c = 0; c < padded_; c += sizes::block) {
          float const* const values = values_of(h, c) + std::ptrdiff_t{s} * sizes::block;
          products_.multiply(first_, sizes::block, rows, sizes::block, values, 1, second_);
          kernels_.scale_and_add(second_, rows, is_first && s == 0 ? nullptr : shrink_,
                                 sum_of_values_ + (e * heads + h) * padded_ + c, heads * padded_);
        }
      }
    }
  }

  /// Puts the features of a tile's entries at the front of its rows, `stride` floats apart.
  void join_features(int e, std::int64_t stride) {
    float const* from = features_ + std::ptrdiff_t{e} * head_.dims;
    for (int i = 0; i < rows_at(e); ++i, from += head_.dims) std::copy_n(from, head_.dims, joined_ + i * stride);
  }
  /// Puts the contexts after them.
  void join_contexts(int e) {
    for (int i = 0; i < rows_at(e); ++i) {
      float* to = joined_ + i * folded_.hidden.in + head_.dims;
      for (std::int64_t h = 0; h < heads; ++h, to += head_width_) {
        float const* const from = sum_of_values_ + ((e + i) * heads + h) * padded_;
        float const sum = sum_[h * sizes::entries_of_a_task + e + i];
        kernels_.divide(from, static_cast<int>(head_width_), sum, to);
      }
    }
  }

  /// Adds the head's output to the scores of a tile. Its rows have the first `columns` columns of `hidden`.
  void finish(int e, packed_rows const& hidden, float const* tile, std::int64_t columns) {
    int const rows = rows_at(e);
    float out[sizes::rows_of_a_tile] = {};
    for (std::int64_t b = 0; b < hidden.blocks(); ++b) {
      products_.multiply(tile, columns, rows, columns, hidden.block(b), 1, first_);
      std::int64_t const at = b * sizes::block;
      kernels_.add_gelu_units({first_, hidden.constant + at, hidden.slope + at, folded_.last + at, rule_, rows}, out);
    }
    float const alpha = std::clamp(head_.alpha, -5.0f, 5.0f);
    for (int i = 0; i < rows; ++i) {
      bool const candidate = scores_[e + i] != -std::numeric_limits<float>::infinity();
      if (candidate) scores_[e + i] += alpha * (out[i] + head_.fc2_bias[0]);
    }
  }

  row_products products_;
  residual_kernels const& kernels_;
  residual_head const& head_;
  folded_head const& folded_;
  std::int64_t head_width_;
  std::int64_t padded_;  ///< columns of a head's values, padded
  float* query_;         ///< [entries][width, padded]
  float* sum_of_values_;
  float* row_max_;  ///< [head][entries]
  float* sum_;
  float* keys_;
  float* values_;
  float* first_;  ///< tiles [24][32]
  float* second_;
  float* rule_;
  float* shrink_;
  float* joined_;  ///< [24][dims, then a context or weights of attention]
  float* projected_;
  float const* features_ = nullptr;
  float const* projected_span_ = nullptr;  ///< the rows whose projection is in keys_ and values_
  float* scores_ = nullptr;
  int count_ = 0;
};

}  // namespace KVPOLICY_NAMESPACE::detail
