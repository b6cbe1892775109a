// SPDX-License-Identifier: Apache-2.0
// Host implementation of query_moments and future_moments: a worker handles the rows of one query head.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/kernels/transpose.hpp>
#include <kvpolicy/ops/host/row_products.hpp>
#include <kvpolicy/ops/query_moments.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The moments of one query head of one lane. Some rows at a time are copied, less the mean, in blocks of 32 channels;
/// a block and the transposed rows are the two sides of a product.
class head_moments {
 public:
  static constexpr int at_once = 128;      ///< rows
  static constexpr int block = most_rows;  ///< channels of a block: 32

  static std::size_t scratch(int dims) {
    auto const all = static_cast<std::size_t>(padded(dims));
    return scratch_of<double>(all) + 2 * scratch_of<float>(all) + 2 * scratch_of<float>(all * at_once) +
           scratch_of<float>(all * block);
  }

  head_moments(host_executor const& exec, query_view const& rows, lane one, int head, int sinks,
               std::span<std::byte> memory)
      : level_(exec.simd_level()), rows_(rows), lane_(one), head_(head), sinks_(sinks), dims_(rows.dims) {
    scratch_arena arena(memory);
    auto const all = static_cast<std::size_t>(padded(dims_));
    total_ = arena.take<double>(all);
    mean_ = arena.take<float>(all);
    row_ = arena.take<float>(all);
    blocks_ = arena.take<float>(all * at_once);
    columns_ = arena.take<float>(all * at_once);
    products_ = arena.take<float>(all * block);
  }

  void compute(float* mean, float* square) {
    std::fill_n(total_, dims_, 0.0);
    std::int64_t const count = each_part([&](std::byte const* const* at, int some) {
      std::fill_n(row_, dims_, 0.0f);
      element_rows_of_isa[level_].of(rows_.element)(at, at, some, dims_, row_);
      for (int d = 0; d < dims_; ++d) total_[d] += static_cast<double>(row_[d]);
    });
    double const shares = count > 0 ? static_cast<double>(count) : 1;
    for (int d = 0; d < dims_; ++d) mean[d] = mean_[d] = static_cast<float>(total_[d] / shares);
    if (square == nullptr) return;
    std::fill_n(square, std::ptrdiff_t{dims_} * dims_, 0.0f);
    each_part([&](std::byte const* const* at, int some) {
      for (int i = 0; i < some; ++i) centre(at[i], i);
      add(some, square);
    });
    auto const share = static_cast<float>(1 / shares);
    for (int a = 0; a < dims_; ++a) {
      for (int b = 0; b <= a; ++b) {
        float& one = square[std::ptrdiff_t{a} * dims_ + b];
        square[std::ptrdiff_t{b} * dims_ + a] = one *= share;
      }
    }
  }

 private:
  static constexpr int padded(int dims) { return (dims + block - 1) / block * block; }

  /// Calls visit(addresses, count) for the rows that count, at most `at_once` at a time, and returns their number.
  template <class Visit>
  std::int64_t each_part(Visit const& visit) const {
    std::byte const* at[at_once];
    std::int64_t all = 0;
    int some = 0;
    int const valid = rows_.rows > 0 ? rows_.valid(lane_) : 0;
    int const* const position = rows_.position.data != nullptr ? rows_.position.row(lane_) : nullptr;
    for (int r = 0; r < valid; ++r) {
      int const stored = rows_.stored(lane_, r);
      if ((position != nullptr ? position[stored] : r) < sinks_) continue;
      at[some++] = rows_.at(lane_, head_, stored);
      if (some < at_once) continue;
      visit(at, some);
      all += some;
      some = 0;
    }
    if (some > 0) visit(at, some);
    return all + some;
  }

  /// Makes a row the i-th one of the blocks, less the mean.
  void centre(std::byte const* from, int i) {
    convert_row(level_, rows_.element, from, bytes_of(rows_.element), dims_, row_);
    for (int d = 0; d < dims_; ++d) row_[d] -= mean_[d];
    std::fill(row_ + dims_, row_ + padded(dims_), 0.0f);
    for (int d = 0; d < dims_; d += block) {
      std::copy_n(row_ + d, block, blocks_ + std::ptrdiff_t{d} * at_once + std::ptrdiff_t{i} * block);
    }
  }

  /// Adds the products of the rows in the blocks: of each block of columns the rows from its own on.
  void add(int some, float* square) {
    row_products const products(level_);
    for (int d = 0; d < dims_; d += block) {
      float const* row[at_once];
      for (int i = 0; i < some; ++i) row[i] = blocks_ + std::ptrdiff_t{d} * at_once + std::ptrdiff_t{i} * block;
      transpose_of_isa[level_].rows(row, some, std::min(block, dims_ - d), columns_ + std::ptrdiff_t{d} * at_once,
                                    at_once);
    }
    for (int d = 0; d < dims_; d += block) {
      std::ptrdiff_t const first = std::ptrdiff_t{d} * at_once;
      products.multiply(columns_ + first, at_once, dims_ - d, some, blocks_ + first, 1, products_);
      int const width = std::min(block, dims_ - d);
      for (int a = d; a < dims_; ++a) {
        float* const to = square + std::ptrdiff_t{a} * dims_ + d;
        float const* const from = products_ + std::ptrdiff_t{a - d} * block;
        for (int b = 0; b < width; ++b) to[b] += from[b];
      }
    }
  }

  isa level_;
  query_view const& rows_;
  lane lane_;
  int head_;
  int sinks_;
  int dims_;
  double* total_ = nullptr;
  float* mean_ = nullptr;
  float* row_ = nullptr;
  float* blocks_ = nullptr;    ///< [block of channels][row][32]
  float* columns_ = nullptr;   ///< [channel][row]
  float* products_ = nullptr;  ///< [channel][32]
};

}  // namespace detail

template <>
struct implementation<ops::query_moments_t, host> {
  static std::size_t scratch(shape const& model, int) { return detail::head_moments::scratch(model.head_dim); }

  static void run(host_executor& exec, lanes const& batch, query_view const& rows, int sinks,
                  moments_of_queries const& out) {
    int const group = rows.heads / batch.heads, dims = rows.dims;
    exec.for_each(batch.size() * group, [&](int i, int worker) {
      lane const one = batch.at(i / group);
      int const head = i % group;
      detail::head_moments made(exec, rows, one, one.head * group + head, sinks, exec.scratch(worker));
      float* const square =
          out.square.data != nullptr ? out.square.row(one) + std::ptrdiff_t{head} * dims * dims : nullptr;
      made.compute(out.mean.row(one) + std::ptrdiff_t{head} * dims, square);
    });
  }
};

template <>
struct implementation<ops::future_moments_t, host> {
  static std::size_t scratch(shape const& model, int) {
    return detail::scratch_of<detail::mean_turn::number>(static_cast<std::size_t>(model.head_dim));
  }

  static void run(host_executor& exec, lanes const& batch, query_model const& from, int future,
                  moments_of_queries const& out) {
    int const group = from.mean.heads / batch.heads;
    detail::mean_turn const turn{from, future};
    exec.for_each(batch.size(), [&](int i, int worker) {
      lane const one = batch.at(i);
      auto* const by = detail::scratch_arena(exec.scratch(worker))
                           .take<detail::mean_turn::number>(static_cast<std::size_t>(turn.units()));
      int const newest = batch.newest(one);
      for (int u = 0; u < turn.units(); ++u) by[u] = turn.of(u, newest);
      for (int head = 0; head < group; ++head) {
        detail::turned_head const turned(turn, by, out, one, head, group);
        for (int a = 0; a < turn.units(); ++a) {
          turned.turn_mean(a);
          for (int b = 0; out.square.data != nullptr && b < turn.units(); ++b) turned.turn_square(a, b);
        }
      }
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
