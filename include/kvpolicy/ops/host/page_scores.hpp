// SPDX-License-Identifier: Apache-2.0
// Host implementation of page_scores, as a product of transformed query rows with rows of bounds.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/attention/lane_logits.hpp>
#include <kvpolicy/ops/page_scores.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The pages of one lane and the query heads of its group. sum max(q high, q low) is one product: of [max(q, 0); min(q,
/// 0)] with [high; low].
class page_products {
 public:
  static constexpr int blocks = 2;  ///< blocks of few_rows heads that share a pass over the bounds

  static int padded(int group) { return (group + few_rows - 1) / few_rows * few_rows; }
  static std::size_t scratch(shape const& model) {
    shape folded = model;
    folded.head_dim = 2 * model.head_dim;
    auto const rows = static_cast<std::size_t>(padded(model.group()) + 1) * static_cast<std::size_t>(folded.head_dim);
    return scratch_of<float>(rows) + scratch_of<float>(values_of_a_tile) + blocks * lane_logits::scratch(folded);
  }

  page_products(host_executor const& exec, page_bound_view const& bounds, query_view const& rows, lane this_lane,
                int group, scratch_arena arena)
      : exec_(&exec),
        dims_(2 * bounds.dims),
        group_(group),
        arena_(arena),
        folded_(arena_.take<float>(static_cast<std::size_t>(padded(group) + 1) * static_cast<std::size_t>(dims_))),
        values_(arena_.take<float>(values_of_a_tile)) {
    bounds_.rows = {.base = const_cast<std::byte*>(bounds.row(this_lane, 0)),  // a plane has writable rows
                    .element = bounds.element,
                    .channels = dims_,
                    .token_stride = bounds.row_bytes(),
                    .channel_stride = bytes_of(bounds.element)};
    for (int h = 0; h < padded(group); ++h) fold(rows, this_lane, h);
  }

  /// Computes the scores of the first `pages` pages.
  void score(int pages, reduction how, float* out) const {
    for (int first = 0; first < group_; first += blocks * few_rows) pass(first, pages, how, out);
    for (int p = 0; p < pages && asks_numbers_; ++p) {
      if (out[p] != out[p]) out[p] = by_definition(p, how);
    }
  }

 private:
  /// The values of a tile. A vector store may write after the last one.
  static constexpr std::size_t values_of_a_tile = (keys_of_a_tile + 4) * few_rows;

  /// Transforms the row of head h of the group. Beyond the last head, the first one is repeated to fill the block.
  void fold(query_view const& rows, lane this_lane, int h) {
    int const head = this_lane.head * group_ + (h < group_ ? h : 0);
    float* const to = folded_ + std::ptrdiff_t{h} * dims_;
    float* const plain = folded_ + std::ptrdiff_t{padded(group_)} * dims_;
    int const half = dims_ / 2;
    load_row(rows.element, rows.at(this_lane, head, rows.stored(this_lane, rows.valid(this_lane) - 1)),
             bytes_of(rows.element), half, plain);
    for (int d = 0; d < half; ++d) {
      to[d] = plain[d] < 0 ? 0.0f : plain[d];  // NaN propagates
      to[half + d] = plain[d] < 0 ? plain[d] : 0.0f;
      asks_numbers_ = asks_numbers_ && plain[d] == plain[d];
    }
  }

  /// The score of a page whose product is NaN: because an infinite bound is multiplied by the zero of the other half,
  /// or because a key has a NaN.
  [[nodiscard]] float by_definition(int page, reduction how) const {
    double all = how == reduction::max ? -std::numeric_limits<double>::infinity() : 0.0;
    for (int h = 0; h < group_; ++h) {
      double const one = bound_of(page, folded_ + std::ptrdiff_t{h} * dims_);
      all = how == reduction::max ? larger(all, one) : all + one;
    }
    return static_cast<float>(how == reduction::mean ? all / group_ : all);
  }
  [[nodiscard]] double bound_of(int page, float const* folded) const {
    int const half = dims_ / 2;
    std::byte const* const row = bounds_.rows.base + page * bounds_.rows.token_stride;
    double sum = 0;
    for (int d = 0; d < half; ++d) {
      double const q = static_cast<double>(folded[d]) + static_cast<double>(folded[half + d]);  // one of them is 0
      auto const high = static_cast<double>(load(bounds_.rows.element, row + d * bounds_.rows.channel_stride));
      auto const low = static_cast<double>(load(bounds_.rows.element, row + (half + d) * bounds_.rows.channel_stride));
      sum += larger(q * high, q * low);
    }
    return sum;
  }
  /// The larger of two numbers; NaN propagates from either side.
  static double larger(double a, double b) { return a >= b || a != a ? a : b; }

  /// A query view of the rows of heads [first, first + few_rows).
  [[nodiscard]] query_view rows_from(int first) const {
    std::int64_t const row = std::int64_t{dims_} * static_cast<int>(sizeof(float));
    return {.base = reinterpret_cast<std::byte const*>(folded_) + first * row,
            .dims = dims_,
            .head = row,
            .row = row,
            .heads = few_rows,
            .rows = 1};
  }

  /// Sets the scale of each head. A repeated head counts in a maximum, where it changes nothing, but not in a sum.
  void set_scales(row_block& block, int first, int pages, reduction how) const {
    for (int r = 0; r < few_rows; ++r) {
      bool const counts = how == reduction::max || first + r < group_;
      block.visible[r] = counts ? pages : 0;
      block.scale[r] = how == reduction::mean ? 1.0f / static_cast<float>(group_) : 1.0f;
    }
  }

  void pass(int begin, int pages, reduction how, float* out) const {
    scratch_arena arena = arena_;
    query_view rows[blocks];
    lane_logits logits[blocks];
    row_block block[blocks];
    int const there = std::min(blocks, padded(group_ - begin) / few_rows);
    for (int b = 0; b < there; ++b) {
      rows[b] = rows_from(begin + b * few_rows);
      logits[b] = lane_logits(*exec_, bounds_, rows[b], {}, {0, 1, few_rows}, arena);
      logits[b].scale_by(1);
      block[b] = logits[b].block_storage(0);
      block[b].set_rows(exec_->simd_level(), few_rows);
      logits[b].pack(block[b], 0, few_rows);
      set_scales(block[b], begin + b * few_rows, pages, how);
    }
    for (int p = 0; p < pages; p += keys_of_a_tile) {
      for (int b = 0; b < there; ++b) {
        int const count = logits[b].load_tile(p, pages);
        logits[b].multiply_tile(block[b], count, values_);
        block[b].softmax->reduce({values_, p, count, block[b].visible, block[b].scale}, how == reduction::max,
                                 begin + b > 0, out + p);
      }
    }
  }

  host_executor const* exec_;
  int dims_;  ///< numbers in a row of bounds: 2 D
  int group_;
  bool asks_numbers_ = true;
  scratch_arena arena_;
  float* folded_;
  float* values_;
  keys bounds_{{{}, identity_map(std::numeric_limits<int>::max())}};
};

}  // namespace detail

template <>
struct implementation<ops::page_scores_t, host> {
  static std::size_t scratch(shape const& model, int) { return detail::page_products::scratch(model); }

  static void run(host_executor& exec, lanes const& batch, page_bound_view const& bounds, query_view const& rows,
                  reduction group, score_view const& out) {
    detail::refuse_counts("page_scores", batch, batch.sequence_begin,
                          batch.sequence_end());  // the counts of `out` are of pages
    exec.for_each(out.lanes.size(), [&](int i, int worker) {
      lane const one = out.lanes.at(i);
      int const committed = batch.committed(one);
      int const known = *bounds.known.row(one);
      int const pages = detail::pages_for(committed, bounds.page);
      int const known_pages = known >= committed ? pages : known / bounds.page;
      float* const to = out.row(i);
      std::fill(to + known_pages, to + pages, std::numeric_limits<float>::infinity());
      bool const asks = rows.valid(one) > 0;
      if (!asks) std::fill_n(to, pages, 0.0f);
      if (!asks || known_pages == 0) return;
      detail::scratch_arena const arena(exec.scratch(worker));
      detail::page_products(exec, bounds, rows, one, rows.heads / batch.heads, arena).score(known_pages, group, to);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
