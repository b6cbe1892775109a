// SPDX-License-Identifier: Apache-2.0
// The attention probabilities of one lane: which rows take part, what they see, and their softmax, block by block.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/host/attention/lane_logits.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/visit_attention.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// The rows of a lane that are used, and the entries that they see.
class rows_that_see {
 protected:
  rows_that_see(query_view const& rows, attention_mass_options const& how, lanes const& batch, lane this_lane)
      : rows_(rows), lane_(this_lane), position_(batch.position.row(this_lane)), entries_(batch.committed(this_lane)) {
    int const newest = batch.newest(this_lane);
    int end = rows_.valid(lane_);
    while (!rows_see_every_entry() && end > 0 && position_of(end - 1) > newest) --end;
    int const used = how.used().of(entries_);
    begin_ = used > 0 ? std::max(0, end - used) : 0;
    domain_ = entries_;
    if (how.domain == key_domain::past && begin_ < end && !rows_see_every_entry())
      domain_ = entries_before(position_of(begin_));
    if (how.rows == reduction::last) begin_ = std::max(begin_, end - 1);
    count_ = std::max(0, end - begin_);
    seen_ = count_ > 0 ? visible(count_ - 1) : 0;
  }

  /// Row `row` of those that are used.
  [[nodiscard]] attention_row row_at(int row) const { return {begin_ + row, position_of(begin_ + row)}; }
  /// The number of entries that it sees.
  [[nodiscard]] int visible(int row) const {
    return rows_see_every_entry() ? domain_ : std::min(domain_, entries_before(position_of(begin_ + row) + 1));
  }

  /// The number of entries that are older than the first row used.
  [[nodiscard]] int before_rows() const {
    return count_ == 0 || rows_see_every_entry() ? entries_ : entries_before(position_of(begin_));
  }

  query_view const& rows_;
  lane lane_;
  int const* position_;
  int entries_;
  int begin_ = 0;   ///< the first row used
  int count_ = 0;   ///< rows of each head that are used
  int domain_ = 0;  ///< the softmax runs over the first `domain_` entries
  int seen_ = 0;    ///< how many entries the last row sees, which sees the most

 private:
  [[nodiscard]] bool rows_see_every_entry() const { return rows_.position.data == nullptr; }
  [[nodiscard]] int position_of(int row) const { return rows_.position.row(lane_)[rows_.stored(lane_, row)]; }

  /// The number of entries at positions below `limit`. Visible entries are a prefix: positions ascend, or
  /// (`lane_order`) a row sees all entries that are out of order, because it is newer.
  [[nodiscard]] int entries_before(int limit) const {
    return static_cast<int>(std::lower_bound(position_, position_ + entries_, limit) - position_);
  }
};

/// The probabilities of a lane's rows. A class that derives from it makes something of them. Row i is row `i % count_`
/// of the group's query head `i / count_`.
class lane_probabilities : protected rows_that_see {
 public:
  static constexpr int most_stretches = 64;  ///< for as many `scales_` has memory
  static std::size_t scratch(shape const& model, int bound) {
    auto const n = static_cast<std::size_t>(bound);
    return scratch_of<float>(most_rows * n) + scratch_of<float>(n) + scratch_of<float>(most_rows * most_stretches) +
           lane_logits::scratch(model);
  }

  /// `scores` has the lanes, and says which entries are candidates if only they count. It is not written.
  lane_probabilities(host_executor const& exec, keys const& from, query_view const& rows,
                     attention_mass_options const& how, score_view const& scores, lane this_lane,
                     std::span<std::byte> memory)
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

 protected:
  [[nodiscard]] bool lse_is_given() const {
    return rows_.lse.data != nullptr && domain_ == entries_ && candidate_ == nullptr;
  }

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

  /// A block of at most so many rows. Beside one of 16 there is memory for as many rows of the group.
  [[nodiscard]] row_block first_block(int most = 16) {
    row_block block = products_.block_storage(0);
    block.set_rows(products_.simd_level(), products_.rows_for(count_, most));
    return block;
  }
  [[nodiscard]] float* block_memory() { return logits_; }
  [[nodiscard]] float* entry_numbers() { return total_; }
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

  /// Computes the logits of rows [first, first + count). For a mean over the group, their scale is 1 / group.
  void plain_logits(row_block& block, int first, int count) {
    fill(block, first, count);
    products_.multiply_range(block, 0, seen_, seen_, logits_);
    scale_all(share_of_head());
  }

  attention_mass_options const& how_;
  int group_;
  float const* candidate_;  ///< -inf for an entry that is not a candidate; null: all are
  int stretch_ = 1;         ///< entries whose block of logits stays in the cache until they are probabilities
  float* logits_ = nullptr;
  float* total_ = nullptr;
  float* scales_ = nullptr;  ///< per stretch and row: the factor that turns values into probabilities
  lane_logits products_{};

 private:
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

  static constexpr float lowest = -std::numeric_limits<float>::infinity();
};

}  // namespace KVPOLICY_NAMESPACE::detail
