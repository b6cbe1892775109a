// SPDX-License-Identifier: Apache-2.0
// A short span folded into the weights of a residual head.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/host/folded_head.hpp>
#include <kvpolicy/ops/host/row_products.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// The weights of entries that attend to at most 32 fixed entries i. Products with fixed matrices follow one another,
/// so they become one product, and no entry needs a query, a sum of values, or a context of its own:
///
///     logits_i = W_q phi . W_k k_i       = phi . (W_q^T W_k k_i)
///     fc1_c c  = fc1_c sum_i p_i W_v k_i = sum_i p_i (fc1_c W_v k_i)
struct folded_span {
  static constexpr int most = residual_sizes::block;  ///< entries of a short span
  static constexpr int heads = residual_head::heads;

  packed_rows logits;  ///< a block of 32 for each head. An entry that is not there has the constant -inf
  packed_rows hidden;  ///< of a key, followed by the weights of attention of each head [4][32]

  /// `span`: the features of the entries, `count` rows.
  folded_span(host_executor const& exec, residual_head const& head, folded_head const& folded, float const* span,
              int count, int terms, float*& temp_storage)
      : logits(residual_sizes::weights_of_span(), head.dims, temp_storage),
        hidden(head.hidden, head.dims + residual_sizes::weights_of_span(), temp_storage),
        products_(exec.simd_level()),
        head_(head),
        count_(count),
        features_(take_floats(temp_storage, std::int64_t{head.dims} * most)),
        by_channel_(take_floats(temp_storage, std::int64_t{head.dims} * folded.query.padded())),
        keys_(take_floats(temp_storage, std::int64_t{head.width} * most)),
        values_(take_floats(temp_storage, std::int64_t{head.width} * most)),
        rows_(take_floats(temp_storage, std::int64_t{head.width} * most)) {
    pack(span);
    project(head.w_k, head.w_k_bias, terms, keys_);
    project(head.w_v, head.w_v_bias, terms, values_);
    fold_logits(folded.query);
    fold_values(folded.hidden);
  }

 private:
  [[nodiscard]] int head_width() const { return head_.width / heads; }

  /// features_[channel][entry], with zeros for entries that are not there.
  void pack(float const* span) {
    std::fill_n(features_, std::ptrdiff_t{head_.dims} * most, 0.0f);
    for (int s = 0; s < count_; ++s, span += head_.dims) {
      for (int d = 0; d < head_.dims; ++d) features_[d * most + s] = span[d];
    }
  }
  /// to[o][entry] = W k + bias.
  void project(float const* weights, float const* bias, int terms, float* to) {
    products_.multiply(weights, head_.dims, head_.width, head_.dims, features_, 1.0f / static_cast<float>(terms), to);
    for (int o = 0; o < head_.width; ++o) {
      for (int s = 0; s < most; ++s) to[o * most + s] += bias[o];
    }
  }

  void fold_logits(packed_rows const& query) {
    std::int64_t const stride = query.padded();
    for (std::int64_t b = 0; b < query.blocks(); ++b) {
      for (int d = 0; d < head_.dims; ++d) {
        std::copy_n(query.block(b) + d * most, most, by_channel_ + d * stride + b * most);
      }
    }
    float const scale = 1.0f / std::sqrt(static_cast<float>(head_width()));
    for (int h = 0; h < heads; ++h) {
      int const first = h * head_width();
      products_.multiply(by_channel_ + first, stride, head_.dims, head_width(), keys_ + first * most, scale,
                         logits.block(h));
      for (int s = 0; s < most; ++s) {
        float constant = 0, slope = 0;
        for (int c = first; c < first + head_width(); ++c) {
          constant += query.constant[c] * keys_[c * most + s];
          slope += query.slope[c] * keys_[c * most + s];
        }
        logits.constant[h * most + s] = s < count_ ? constant * scale : -std::numeric_limits<float>::infinity();
        logits.slope[h * most + s] = slope * scale;
      }
    }
  }

  void fold_values(packed_rows const& of) {
    for (int o = 0; o < head_.width; ++o) {
      for (int s = 0; s < count_; ++s) rows_[s * head_.width + o] = values_[o * most + s];
    }
    std::copy_n(of.constant, of.padded(), hidden.constant);
    std::copy_n(of.slope, of.padded(), hidden.slope);
    for (std::int64_t b = 0; b < of.blocks(); ++b) {
      std::copy_n(of.block(b), std::ptrdiff_t{head_.dims} * most, hidden.block(b));
      for (int h = 0; h < heads; ++h) {
        std::ptrdiff_t const first = std::ptrdiff_t{h} * head_width();
        products_.multiply(rows_ + first, head_.width, count_, head_width(), of.block(b) + (head_.dims + first) * most,
                           1, hidden.block(b) + (head_.dims + std::ptrdiff_t{h} * most) * most);
      }
    }
  }

  row_products products_;
  residual_head const& head_;
  int count_;
  float* features_;
  float* by_channel_;  ///< W_q, with the memory, as [channel][width]
  float* keys_;        ///< [width][32]
  float* values_;
  float* rows_;  ///< values as [entry][width]
};

}  // namespace KVPOLICY_NAMESPACE::detail
