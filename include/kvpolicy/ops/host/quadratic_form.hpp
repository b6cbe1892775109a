// SPDX-License-Identifier: Apache-2.0
// Host implementation of quadratic_form: tiles of keys times blocks of 32 columns of the matrix, and times keys again.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/kernels/products.hpp>
#include <kvpolicy/ops/host/lane_rows.hpp>
#include <kvpolicy/ops/quadratic_form.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The forms of one lane. Block b of the matrix has its 32 columns from row 32 b on, to which what is above the
/// diagonal blocks is added: k^T S k = sum over blocks of k_b . (U_b^T k from 32 b on).
class lane_forms {
 public:
  static constexpr int block = most_rows;

  static std::size_t scratch(int dims) {
    auto const all = static_cast<std::size_t>(padded(dims));
    return scratch_of<float>(all * all) + scratch_of<float>(all) +
           scratch_of<float>(static_cast<std::size_t>(keys_of_a_tile) * (all + block));
  }

  lane_forms(host_executor const& exec, keys const& from, query_view const& square, lane one,
             std::span<std::byte> memory)
      : level_(exec.simd_level()), keys_(from), lane_(one), at_(from, one), dims_(from.rows.channels) {
    scratch_arena arena(memory);
    auto const all = static_cast<std::size_t>(padded(dims_));
    packed_ = arena.take<float>(all * all);
    row_ = arena.take<float>(all);
    tile_ = arena.take<float>(static_cast<std::size_t>(keys_of_a_tile) * (all + block));
    values_ = tile_ + keys_of_a_tile * padded(dims_);
    pack(square);
  }

  /// The forms of entries [first, first + count), at most a tile of them.
  void compute(int first, int count, float* out) {
    load_keys(first, count);
    std::fill_n(out, count, 0.0f);
    float const* packed = packed_;
    for (int d = 0; d < dims_; d += block) {
      for (int k = 0; k < 2 * keys_of_a_tile; ++k) address_[k] = key_[std::min(k, count - 1)] + d;
      logits_of_isa[level_].most.interleaved()(address_, count, dims_ - d, packed, 1, values_);
      int const width = std::min(block, dims_ - d);
      for (int k = 0; k < count; ++k) {
        float const* const key = key_[k] + d;
        float const* const value = values_ + std::ptrdiff_t{k} * block;
        out[k] += width == block ? dot<block>(key, value) : dot_of(key, value, width);
      }
      packed += std::ptrdiff_t{dims_ - d} * block;
    }
  }

 private:
  static constexpr int padded(int dims) { return (dims + block - 1) / block * block; }

  /// Packs each block as [row][32].
  void pack(query_view const& square) {
    std::fill_n(packed_, std::ptrdiff_t{padded(dims_)} * padded(dims_), 0.0f);
    for (int r = 0; r < dims_; ++r) {
      std::byte const* const from = square.at(lane_, lane_.head, square.stored(lane_, r));
      convert_row(level_, square.element, from, bytes_of(square.element), dims_, row_);
      for (int d = 0; d < dims_; ++d) {
        bool const above = d / block > r / block;
        int const column = above ? r : d, row = above ? d : r, begin = column / block * block;
        packed_[start_of(begin) + std::ptrdiff_t{row - begin} * block + column % block] += row_[d];
      }
    }
  }
  /// Where the block whose first column is `begin` is packed.
  [[nodiscard]] std::ptrdiff_t start_of(int begin) const {
    std::ptrdiff_t const blocks = begin / block;
    return (blocks * dims_ - block * (blocks * (blocks - 1) / 2)) * block;
  }

  /// Finds a tile of keys as floats.
  void load_keys(int first, int count) {
    plane const& rows = keys_.rows;
    if (rows.element == codec::f32 && rows.contiguous()) {
      at_.find(first, first + count, reinterpret_cast<void const**>(address_));
      for (int k = 0; k < count; ++k) key_[k] = static_cast<float const*>(address_[k]);
      return;
    }
    std::byte const* from[keys_of_a_tile];
    at_.find(first, first + count, from);
    for (int k = 0; k < count; ++k) {
      float* const to = tile_ + std::ptrdiff_t{k} * padded(dims_);
      convert_row(level_, rows.element, from[k], rows.channel_stride, dims_, to);
      if (rows.scales.data != nullptr) scale_row(keys_.scale(lane_, first + k), dims_, to);
      key_[k] = to;
    }
  }

  template <int Width>
  static float dot(float const* a, float const* b) {
    float sum[8] = {};
    for (int i = 0; i < Width; i += 8) {
      for (int j = 0; j < 8; ++j) sum[j] += a[i + j] * b[i + j];
    }
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
  }
  static float dot_of(float const* a, float const* b, int width) {
    float sum = 0;
    for (int i = 0; i < width; ++i) sum += a[i] * b[i];
    return sum;
  }

  isa level_;
  keys const& keys_;
  lane lane_;
  lane_rows at_;
  int dims_;
  float* packed_ = nullptr;
  float* row_ = nullptr;
  float* tile_ = nullptr;    ///< keys that are converted
  float* values_ = nullptr;  ///< [key][32]
  float const* key_[keys_of_a_tile] = {};
  void const* address_[2 * keys_of_a_tile] = {};
};

}  // namespace detail

template <>
struct implementation<ops::quadratic_form_t, host> {
  static std::size_t scratch(shape const& model, int) { return detail::lane_forms::scratch(model.head_dim); }

  template <class Combine>
  static void run(host_executor& exec, keys const& from, query_view const& square, Combine const& combine,
                  score_view const& out) {
    exec.for_each(out.segments(), [&](int segment, int worker) {
      lane const one = out.lane_of(segment);
      detail::lane_forms forms(exec, from, square, one, exec.scratch(worker));
      float form[detail::keys_of_a_tile];
      float* const row = out.row(segment);
      int const count = out.lanes.committed(one);
      for (int e = 0; e < count; e += detail::keys_of_a_tile) {
        int const some = std::min(detail::keys_of_a_tile, count - e);
        forms.compute(e, some, form);
        for (int k = 0; k < some; ++k) row[e + k] = combine(row[e + k], form[k]);
      }
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
