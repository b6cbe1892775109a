// SPDX-License-Identifier: Apache-2.0
// Host implementation of logits: blocks of query rows times tiles of keys, each tile of which is reduced at once.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/attention/lane_logits.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/logits.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The reduced logits of one lane. Its rows are divided into series, the rows of one query head or the query heads of
/// one row, each of which becomes one number by itself. Where one operation reduces all rows there is one series.
class lane_products {
 public:
  static std::size_t scratch(shape const& model, int bound) {
    return 2 * scratch_of<float>(static_cast<std::size_t>(bound)) + scratch_of<float>(floats_of_values) +
           lane_logits::scratch(model);
  }

  lane_products(host_executor const& exec, keys const& from, query_view const& rows, logits_options const& how,
                lanes const& batch, lane one, std::span<std::byte> memory)
      : how_(how), entries_(batch.committed(one)), group_(rows.rows > 0 ? rows.heads / batch.heads : 1) {
    scratch_arena arena(memory);
    total_ = arena.take<float>(static_cast<std::size_t>(batch.capacity));
    series_ = arena.take<float>(static_cast<std::size_t>(batch.capacity));
    values_ = arena.take<float>(floats_of_values);
    int const end = rows.rows > 0 ? rows.valid(one) : 0;
    int begin = how.last_rows > 0 ? std::max(0, end - how.last_rows) : 0;
    if (how.rows == reduction::last) begin = std::max(begin, end - 1);
    count_ = end - begin;
    products_ = lane_logits(exec, from, rows, one, {begin, count_, group_}, arena);
    bool const alike = kind_of(how.rows) == kind_of(how.group);
    heads_apart_ = how.order == reduction_order::rows_then_group || count_ == 1 || group_ == 1;
    in_series_ = alike || group_ == 1 || count_ == 1 ? count_ * group_ : heads_apart_ ? count_ : group_;
  }

  /// The reduced logits of all entries.
  float const* compute() {
    std::fill_n(total_, entries_, 0.0f);
    if (count_ == 0) return total_;
    int const size = products_.rows_for(in_series_);
    int const parts = (in_series_ + size - 1) / size;
    int const blocks = count_ * group_ / in_series_ * parts;
    for (int first = 0; first < blocks; first += lane_logits::storage) {
      multiply(first, std::min(blocks, first + lane_logits::storage), size, parts);
    }
    int const shares = (how_.rows == reduction::mean ? count_ : 1) * (how_.group == reduction::mean ? group_ : 1);
    if (shares > 1) {
      for (int e = 0; e < entries_; ++e) total_[e] /= static_cast<float>(shares);
    }
    return total_;
  }

 private:
  static constexpr std::size_t floats_of_values =
      keys_of_a_tile * most_rows + 16;  // a whole vector may follow the last

  static reduction kind_of(reduction how) { return how == reduction::max ? reduction::max : reduction::sum; }
  [[nodiscard]] reduction inner() const { return kind_of(heads_apart_ && count_ > 1 ? how_.rows : how_.group); }
  [[nodiscard]] reduction outer() const { return kind_of(heads_apart_ ? how_.group : how_.rows); }

  /// The number of row `i` of all series, whose rows are numbered head by head.
  [[nodiscard]] int number_of(int i) const { return heads_apart_ ? i : i % group_ * count_ + i / group_; }

  /// Packs part `part` of a series. A block for a maximum is filled up with its last row.
  void fill(row_block& block, int which, int size, int parts, int at) {
    int const begin = which / parts * in_series_ + which % parts * size;
    int const count = std::min(size, in_series_ - which % parts * size);
    bool const repeats = inner() == reduction::max;
    block = products_.block_storage(at);
    block.set_rows(products_.simd_level(), size);
    std::fill_n(block.scale, most_rows, 1.0f);
    std::fill_n(block.visible, most_rows, 0);
    std::fill_n(block.visible, repeats ? size : count, entries_);
    products_.pack_each(block, repeats ? size : count,
                        [&](int i) { return number_of(begin + std::min(i, count - 1)); });
  }

  /// Multiplies blocks [first, last) and all keys.
  void multiply(int first, int last, int size, int parts) {
    row_block block[lane_logits::storage];
    for (int b = first; b < last; ++b) fill(block[b - first], b, size, parts, b - first);
    lane_logits::amx_registers const registers = products_.acquire(block[0]);
    for (int e = 0; e < entries_; e += keys_of_a_tile) {
      int const keys = products_.load_tile(e, entries_);
      for (int b = first; b < last; ++b) {
        row_block const& one = block[b - first];
        products_.multiply_tile(one, keys, values_);
        block_view const view{values_, e, keys, one.visible, block[b - first].scale};
        one.softmax->reduce(view, inner() == reduction::max, b % parts > 0, series_ + e);
        if ((b + 1) % parts > 0) continue;
        for (int k = 0; k < keys; ++k) fold(total_[e + k], series_[e + k], outer(), b / parts == 0);
      }
    }
  }

  logits_options const& how_;
  int entries_;
  int group_;
  int count_ = 0;            ///< rows of each head
  int in_series_ = 1;        ///< rows of a series
  bool heads_apart_ = true;  ///< a series is of one head; false: of one row
  float* total_ = nullptr;
  float* series_ = nullptr;  ///< the reduction of a series so far
  float* values_ = nullptr;
  lane_logits products_{};
};

}  // namespace detail

template <>
struct implementation<ops::logits_t, host> {
  static std::size_t scratch(shape const& model, int bound) { return detail::lane_products::scratch(model, bound); }

  template <class Combine>
  static void run(host_executor& exec, keys const& from, query_view const& rows, logits_options const& how,
                  Combine const& combine, score_view const& out) {
    keys plain = from;
    plain.logits = {};
    plain.logits.scale = how.scale.has_value() ? how.scale : from.logits.scale;
    exec.for_each(out.segments(), [&](int segment, int worker) {
      lane const one = out.lane_of(segment);
      detail::lane_products made(exec, plain, rows, how, out.lanes, one, exec.scratch(worker));
      float const* const logit = made.compute();
      float* const row = out.row(segment);
      int const count = out.lanes.committed(one);
      for (int e = 0; e < count; ++e) row[e] = combine(row[e], logit[e]);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
