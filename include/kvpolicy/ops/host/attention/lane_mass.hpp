// SPDX-License-Identifier: Apache-2.0
// The attention mass of one lane: its rows' probabilities, reduced over rows and query heads.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/attention/lane_probabilities.hpp>
#include <optional>

namespace KVPOLICY_NAMESPACE::detail {

/// The attention that the entries of one lane receive.
class lane_mass : lane_probabilities {
 public:
  static constexpr int most_stored = 6144;  ///< entries whose logits, 768 KiB a block, stay in a second-level cache
  using lane_probabilities::lane_probabilities;
  using lane_probabilities::scratch;

  /// How many lanes' masses the scratch of one worker can store beside the current block. Blocks of 16 rows use only
  /// half of the memory of the larger block.
  static int masses_of_a_worker(attention_mass_options const& how, query_view const& rows, int group) {
    bool const common_reduction = group == 1 || rows.rows == 1 || kind_of(how.rows) == kind_of(how.group);
    bool const small = common_reduction && how.order != reduction_order::group_on_logits && rows.rows * group <= 16;
    return small ? most_rows - 16 : 1;
  }
  /// The memory of the i-th of a worker's `masses`.
  static float* mass_memory(std::span<std::byte> memory, int bound, int i, int masses) {
    auto* const block = reinterpret_cast<float*>(memory.data());
    return block + static_cast<std::ptrdiff_t>(masses > 1 ? 16 + i : most_rows) * bound;
  }

  /// Computes the mass of the lane in `total`.
  void compute(float* total) {
    total_ = total;
    std::fill_n(total_, entries_, 0.0f);
    if (count_ > 0) {
      if (auto const only = common_reduction()) {
        lse_is_given() ? reduce_with_lse(*only) : reduce_in_any_order(*only);
      } else {
        how_.order == reduction_order::rows_then_group ? rows_first() : group_first();
      }
      if (divisor() > 1) divide(total_, divisor());
    }
  }
  void compute() { compute(total_); }
  [[nodiscard]] float const* mass() const { return total_; }

 private:
  static reduction kind_of(reduction how) { return how == reduction::max ? reduction::max : reduction::sum; }

  /// Sum or max, if one operation reduces all rows of all heads in any order.
  [[nodiscard]] std::optional<reduction> common_reduction() const {
    if (group_ == 1) return kind_of(how_.rows);
    if (how_.order == reduction_order::group_on_logits) return std::nullopt;
    if (count_ == 1 || kind_of(how_.rows) == kind_of(how_.group)) return kind_of(how_.group);
    return std::nullopt;
  }

  /// Reduces all rows with one operation, block by block.
  void reduce_in_any_order(reduction how) {
    int const all = count_ * group_;
    if (how == reduction::sum && all > most_rows && seen_ > most_stored && candidate_ == nullptr &&
        how_.weight.is_one() && products_.has_sweeps()) {
      auto const rows = [this](row_block& block, int first, int count) { fill(block, first, count); };
      return add_mass_by_sweeps(products_, rows, all, total_);
    }
    row_block block = products_.block_storage(0);
    for (int first = 0; first < all; first += block.rows) {
      block.set_rows(products_.simd_level(), products_.rows_for(all - first));
      probabilities(block, first, std::min(block.rows, all - first), logits_);
      reduce(block, logits_, how, first > 0, total_);
    }
  }

  /// Does the same when LSE is given: the logits of a tile of keys become probabilities and are reduced at once.
  /// Several blocks of rows share a pass over the keys.
  void reduce_with_lse(reduction how) {
    int const all = count_ * group_;
    for (int begin = 0; begin < all; begin += lane_logits::storage * most_rows) {
      int const end = std::min(all, begin + lane_logits::storage * most_rows);
      row_block block[lane_logits::storage];
      int blocks = 0;
      for (int first = begin; first < end; first += block[blocks++].rows) {
        block[blocks] = products_.block_storage(blocks);
        block[blocks].set_rows(products_.simd_level(), products_.rows_for(end - first));
        fill(block[blocks], first, std::min(block[blocks].rows, end - first));
      }
      lane_logits::amx_registers const registers = products_.acquire(block[0]);
      for (int e = 0; e < seen_; e += keys_of_a_tile) {
        int const keys = products_.load_tile(e, seen_);
        for (int b = 0; b < blocks; ++b) {
          block_view const view{logits_, e, keys, block[b].visible, block[b].scale};
          products_.multiply_tile(block[b], keys, logits_);
          block[b].softmax->apply_lse(view, block[b].lse);
          block[b].softmax->reduce(view, how == reduction::max, begin > 0 || b > 0, total_ + e);
        }
      }
    }
  }

  void rows_first() {
    float* const row_sum = memory_behind();
    row_block block = products_.block_storage(0);
    block.set_rows(products_.simd_level(), products_.rows_for(count_, 16));
    for (int h = 0; h < group_; ++h) {
      for (int r = 0; r < count_; r += 16) {
        probabilities(block, h * count_ + r, std::min(16, count_ - r), logits_);
        reduce(block, logits_, how_.rows, r > 0, row_sum);
      }
      for (int e = 0; e < seen_; ++e) fold(total_[e], row_sum[e], how_.group, h == 0);
    }
  }

  void group_first() {
    bool const on_logits = how_.order == reduction_order::group_on_logits;
    row_block block = first_block();
    for (int r = 0; r < count_; r += 16) {
      int const count = std::min(16, count_ - r);
      float* const combined = combine_heads(block, r, count);
      if (on_logits && products_.has_sinks()) std::fill_n(block.sink, count, products_.group_sink(how_.group));
      if (on_logits) softmax(block, combined, [](block_view const&) {}), weigh(block, r, count);
      reduce(block, combined, how_.rows, r > 0, total_);
    }
  }

  /// How many values each result is the mean of. A mean over logits was already taken before their softmax.
  [[nodiscard]] int divisor() const {
    bool const by_group = how_.group == reduction::mean && how_.order != reduction_order::group_on_logits;
    return (how_.rows == reduction::mean ? count_ : 1) * (by_group ? group_ : 1);
  }

  void divide(float* values, int by) const {
    for (int e = 0; e < entries_; ++e) values[e] /= static_cast<float>(by);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
