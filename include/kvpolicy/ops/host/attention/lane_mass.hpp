// SPDX-License-Identifier: Apache-2.0
// Computes the attention that one lane's entries receive: blocks of query rows times tiles of keys.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/host/attention/lane_logits.hpp>
#include <kvpolicy/ops/host/attention/row_sweeps.hpp>
#include <kvpolicy/ops/host/attention/rows_that_see.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// The attention mass of one lane. Row i is row `i % count_` of the group's query head `i / count_`.
class lane_mass : protected rows_that_see {
 public:
  static constexpr int most_stretches = 64;  ///< for as many `scales_` has memory
  static constexpr int most_stored = 6144;   ///< entries whose logits, 768 KiB a block, stay in a second-level cache
  static std::size_t scratch(shape const& model, int bound) {
    auto const n = static_cast<std::size_t>(bound);
    return scratch_of<float>(most_rows * n) + scratch_of<float>(n) + scratch_of<float>(most_rows * most_stretches) +
           lane_logits::scratch(model);
  }

  /// `scores` has the lanes, and says which entries are candidates if only they count. It is not written.
  lane_mass(host_executor const& exec, keys const& from, query_view const& rows, attention_mass_options const& how,
            score_view const& scores, lane this_lane, std::span<std::byte> memory)
      : rows_that_see(rows, how, scores.lanes, this_lane),
        how_(how),
        group_(rows.heads / scores.lanes.heads),
        candidate_(how.domain == key_domain::candidates ? scores.rows.row(this_lane) : nullptr) {
    scratch_arena arena(memory);
    auto const n = static_cast<std::size_t>(scores.lanes.capacity);
    logits_ = arena.take<float>(most_rows * n);
    total_ = arena.take<float>(n);
    scales_ = arena.take<float>(most_rows * most_stretches);
    // At least 480 entries: 60 KiB of logits for 32 rows.
    int const tiles = (seen_ + keys_of_a_tile - 1) / keys_of_a_tile;
    stretch_ = keys_of_a_tile * std::max(20, (tiles + most_stretches - 1) / most_stretches);
    products_ = lane_logits(exec, from, rows, this_lane, {begin_, count_, group_}, arena);
  }

  /// How many lanes' masses the scratch of one worker can store beside the current block. Blocks of 16 rows use only
  /// half of the memory of the larger block.
  static int totals(attention_mass_options const& how, query_view const& rows, int group) {
    bool const common_reduction = group == 1 || rows.rows == 1 || kind_of(how.rows) == kind_of(how.group);
    bool const small = common_reduction && how.order != reduction_order::group_on_logits && rows.rows * group <= 16;
    return small ? most_rows - 16 : 1;
  }
  /// The memory of the i-th of `of` masses.
  static float* total(std::span<std::byte> memory, int bound, int i, int of) {
    auto* const block = reinterpret_cast<float*>(memory.data());
    return block + static_cast<std::ptrdiff_t>(of > 1 ? 16 + i : most_rows) * bound;
  }

  /// Computes the mass of the lane in `total`.
  void compute(float* total) {
    total_ = total;
    std::fill_n(total_, entries_, 0.0f);
    if (count_ > 0) {
      if (auto const only = common_reduction(); only != reduction::last) {
        lse_is_given() ? reduce_with_lse(only) : reduce_in_any_order(only);
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

  /// Sum or max, if one operation reduces all rows of all heads in any order; otherwise `last`.
  [[nodiscard]] reduction common_reduction() const {
    if (group_ == 1) return kind_of(how_.rows);
    if (how_.order == reduction_order::group_on_logits) return reduction::last;
    if (count_ == 1 || kind_of(how_.rows) == kind_of(how_.group)) return kind_of(how_.group);
    return reduction::last;
  }

  [[nodiscard]] bool lse_is_given() const {
    return rows_.lse.data != nullptr && domain_ == entries_ && candidate_ == nullptr;
  }

  /// Sets the logits of entries that are not candidates to -inf.
  void leave_out(block_view const& view, int rows) const {
    if (candidate_ == nullptr) return;
    float const* const score = candidate_ + view.first;
    for (int e = 0; e < view.count; ++e) {
      while (e + 8 <= view.count && all_compete(score + e)) e += 8;
      if (e == view.count || score[e] != lowest) continue;
      std::fill_n(view.values + static_cast<std::ptrdiff_t>(e) * rows, rows, lowest);
    }
  }
  static bool all_compete(float const* score) { return std::find(score, score + 8, lowest) == score + 8; }

  /// Fills a block with rows [first, first + count): how many entries each sees, its LSE if given, and the packed rows.
  void fill(row_block& block, int first, int count) {
    std::fill_n(block.visible, most_rows, 0);
    std::fill_n(block.lse, most_rows, 0.0f);
    for (int i = 0; i < count; ++i) {
      int const row = (first + i) % count_;
      block.visible[i] = visible(row);
      if (!lse_is_given()) continue;
      int const head = lane_.head * group_ + (first + i) / count_;
      block.lse[i] = rows_.lse.at(lane_, head, rows_.stored(lane_, begin_ + row));
      if (!how_.weight.is_one()) block.lse[i] -= std::log(weight_of(row));
    }
    products_.pack(block, first, count);
  }

  [[nodiscard]] float weight_of(int row) const { return how_.weight(row % count_, count_, entries_); }
  /// Multiplies the factors of rows [first, first + count) by their weights.
  void weigh(row_block const& block, int first, int count) {
    for (int i = 0; i < count && !how_.weight.is_one(); ++i) {
      for (int s = 0; s * stretch_ < seen_; ++s) scales_[std::ptrdiff_t{s} * block.rows + i] *= weight_of(first + i);
    }
  }
  void scale_all(float scale) { std::fill_n(scales_, most_rows * most_stretches, scale); }

  /// Computes the softmax of a block of logits, which `make` writes stretch by stretch.
  template <class Make>
  void softmax(row_block& block, float* values, Make const& make) {
    block.begin_softmax();
    for_each_stretch(block, values, [&](block_view const& view) {
      make(view);
      leave_out(view, block.rows);
      block.softmax->advance(view, block.row_max, block.sum);
    });
    block.softmax->finalize(scales_, (seen_ + stretch_ - 1) / stretch_, block.visible, block.row_max, block.sum);
  }

 protected:
  /// Calls visit(view) for each stretch of entries that any row sees. A stretch stays in the cache.
  template <class Visit>
  void for_each_stretch(row_block& block, float* values, Visit const& visit) {
    float* scale = scales_;
    for (int e = 0; e < seen_; e += stretch_, scale += block.rows) {
      int const count = std::min(stretch_, seen_ - e);
      visit(block_view{values + static_cast<std::ptrdiff_t>(e) * block.rows, e, count, block.visible, scale});
    }
  }

  /// Computes the probabilities of rows [first, first + count) in `values`.
  void probabilities(row_block& block, int first, int count, float* values) {
    fill(block, first, count);
    auto const logits = [&](block_view const& view) {
      products_.multiply_range(block, view.first, view.first + view.count, seen_, view.values);
    };
    if (!lse_is_given()) {
      softmax(block, values, logits);
      return weigh(block, first, count);
    }
    for_each_stretch(block, values, [&](block_view const& view) {
      logits(view);
      block.softmax->apply_lse(view, block.lse);
    });
  }

  /// Reduces a block's rows, and writes the result to `out`, or combines it with `out` if `grow`.
  void reduce(row_block& block, float* values, reduction how, bool grow, float* out) {
    for_each_stretch(block, values, [&](block_view const& view) {
      block.softmax->reduce(view, how == reduction::max, grow, out + view.first);
    });
  }

 private:
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
      lane_logits::tile_registers const registers = products_.acquire(block[0]);
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

 protected:
  /// A block of at most so many rows. Beside one of 16 there is memory for as many rows of the group.
  [[nodiscard]] row_block first_block(int most = 16) {
    row_block block = products_.block_storage(0);
    block.set_rows(products_.simd_level(), products_.rows_for(count_, most));
    return block;
  }
  [[nodiscard]] float* block_memory() { return logits_; }
  [[nodiscard]] float* mass_memory() { return total_; }
  [[nodiscard]] float* memory_behind() { return logits_ + 16 * static_cast<std::ptrdiff_t>(entries_); }

  /// Reduces the heads of rows [first, first + count): their logits, or their probabilities. The result is behind the
  /// memory of a block. If `grow`, it is reduced with what is there.
  float* combine_heads(row_block& block, int first, int count, bool grow = false) {
    float* const combined = memory_behind();
    for (int h = 0; h < group_; ++h) {
      int const row = h * count_ + first;
      how_.order == reduction_order::group_on_logits ? plain_logits(block, row, count)
                                                     : probabilities(block, row, count, logits_);
      for_each_stretch(block, logits_, [&](block_view const& view) {
        float* const into = combined + static_cast<std::ptrdiff_t>(view.first) * block.rows;
        block.softmax->gather_head(view, how_.group == reduction::max, grow || h > 0, into);
      });
    }
    scale_all(1);
    return combined;
  }

  [[nodiscard]] float share_of_head() const {
    return 1.0f / static_cast<float>(how_.group == reduction::mean ? group_ : 1);
  }

 private:
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

  /// Computes the logits of rows [first, first + count). For a mean over the group, their scale is 1 / group.
  void plain_logits(row_block& block, int first, int count) {
    fill(block, first, count);
    products_.multiply_range(block, 0, seen_, seen_, logits_);
    scale_all(how_.group == reduction::mean ? 1.0f / static_cast<float>(group_) : 1.0f);
  }

  /// How many values each result is the mean of. A mean over logits was already taken before their softmax.
  [[nodiscard]] int divisor() const {
    bool const by_group = how_.group == reduction::mean && how_.order != reduction_order::group_on_logits;
    return (how_.rows == reduction::mean ? count_ : 1) * (by_group ? group_ : 1);
  }

  void divide(float* values, int by) const {
    for (int e = 0; e < entries_; ++e) values[e] /= static_cast<float>(by);
  }

  static constexpr float lowest = -std::numeric_limits<float>::infinity();

  attention_mass_options const& how_;
  int group_;
  float const* candidate_;  ///< -inf for an entry that is not a candidate; null: all are
  int stretch_ = 1;         ///< entries whose block of logits stays in the cache until they are probabilities
  float* logits_ = nullptr;
  float* total_ = nullptr;
  float* scales_ = nullptr;  ///< per stretch and row: the factor that turns values into probabilities
  lane_logits products_{};
};

}  // namespace KVPOLICY_NAMESPACE::detail
