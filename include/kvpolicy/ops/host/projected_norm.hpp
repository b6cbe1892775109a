// SPDX-License-Identifier: Apache-2.0
// Host implementation of projected_norm: blocks of rows of the projection times tiles of values, each tile of which is
// reduced at once.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/host/attention/lane_logits.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/row_sums.hpp>
#include <kvpolicy/ops/projected_norm.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The norms of one lane's values after the projection.
class projected_lane {
 public:
  static std::size_t scratch(shape model, int bound) {
    model.head_dim = std::max(model.head_dim, model.value_dim);
    return 2 * scratch_of<float>(static_cast<std::size_t>(bound)) + scratch_of<float>(floats_of_products) +
           lane_logits::scratch(model);
  }

  projected_lane(host_executor const& exec, values const& from, output_projection const& by, norm_of_row how,
                 lanes const& batch, lane one, std::span<std::byte> memory)
      : rows_(by.rows()), squares_(how == norm_of_row::l2), entries_(batch.committed(one)), width_(by.width) {
    static_cast<row_view&>(values_) = from;
    values_.logits.scale = 1.0f;
    group_ = by.heads / batch.heads;
    scratch_arena arena(memory);
    total_ = arena.take<float>(static_cast<std::size_t>(batch.capacity));
    of_head_ = arena.take<float>(static_cast<std::size_t>(batch.capacity));
    made_ = arena.take<float>(floats_of_products);
    products_ = lane_logits(exec, values_, rows_, one, {0, width_, group_}, arena);
  }
  projected_lane(projected_lane const&) = delete;
  projected_lane& operator=(projected_lane const&) = delete;

  /// The norms of all entries, added up over the query heads.
  float const* compute() {
    std::fill_n(total_, entries_, 0.0f);
    std::fill_n(of_head_, entries_, 0.0f);
    if (entries_ == 0) return total_;
    int const size = products_.rows_for(width_);
    int const parts = (width_ + size - 1) / size;
    for (int first = 0; first < group_ * parts; first += lane_logits::storage) {
      multiply(first, std::min(group_ * parts, first + lane_logits::storage), size, parts);
    }
    return total_;
  }
  [[nodiscard]] float heads() const { return static_cast<float>(group_); }

 private:
  static constexpr std::size_t floats_of_products =
      keys_of_a_tile * most_rows + 16;  // a whole vector may follow the last

  /// The rows of the projection that block `which` has; it may have room for more.
  [[nodiscard]] int rows_of(int which, int size, int parts) const {
    return std::min(size, width_ - which % parts * size);
  }

  /// Multiplies blocks [first, last) and all values. A query head has `parts` blocks of up to `size` rows.
  void multiply(int first, int last, int size, int parts) {
    row_block block[lane_logits::storage];
    for (int b = first; b < last; ++b) {
      row_block& one = block[b - first] = products_.block_storage(b - first);
      one.set_rows(products_.simd_level(), size);
      products_.pack(one, b / parts * width_ + b % parts * size, rows_of(b, size, parts));
    }
    block_row_sums const& sums = row_sums_of_isa[products_.simd_level()][size];
    lane_logits::amx_registers const registers = products_.acquire(block[0]);
    for (int e = 0; e < entries_; e += keys_of_a_tile) {
      int const tile = products_.load_tile(e, entries_);
      for (int b = first; b < last; ++b) {
        row_block const& one = block[b - first];
        products_.multiply_tile(one, tile, made_);
        sums.add_norms(made_, tile, rows_of(b, size, parts), squares_, of_head_ + e);
        if ((b + 1) % parts == 0) end_head(e, tile);
      }
    }
  }

  /// Adds the norms of a query head, for `count` entries from `first` on.
  void end_head(int first, int count) {
    for (int e = first; e < first + count; ++e) {
      total_[e] += squares_ ? std::sqrt(of_head_[e]) : of_head_[e];
      of_head_[e] = 0;
    }
  }

  keys values_{};  ///< the values, in the form in which `lane_logits` multiplies rows
  query_view rows_;
  bool squares_;
  int entries_;
  int width_;
  int group_ = 1;
  float* total_ = nullptr;
  float* of_head_ = nullptr;  ///< the sum of a query head so far, of absolute values or of squares
  float* made_ = nullptr;
  lane_logits products_{};
};

}  // namespace detail

template <>
struct implementation<ops::projected_norm_t, host> {
  static std::size_t scratch(shape const& model, int bound) { return detail::projected_lane::scratch(model, bound); }

  template <class Combine>
  static void run(host_executor& exec, values const& from, output_projection const& by,
                  projected_norm_options const& how, Combine const& combine, score_view const& out) {
    exec.for_each(out.segments(), [&](int segment, int worker) {
      lane const one = out.lane_of(segment);
      detail::projected_lane made(exec, from, by, how.norm, out.lanes, one, exec.scratch(worker));
      float const* const norm = made.compute();
      float* const row = out.row(segment);
      int const count = out.lanes.committed(one);
      for (int e = 0; e < count; ++e) row[e] = combine(row[e], norm[e] / made.heads());
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
