// SPDX-License-Identifier: Apache-2.0
// Host implementation of mean_row: a worker adds up the rows of a lane, stretch by stretch.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/lane_rows.hpp>
#include <kvpolicy/ops/host/row_norm.hpp>
#include <kvpolicy/ops/mean_row.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::mean_row_t, host> {
  static std::size_t scratch(shape const& model, int bound) {
    auto const dims = static_cast<std::size_t>(std::max(model.head_dim, model.value_dim));
    return detail::scratch_of<double>(dims) + 2 * detail::scratch_of<float>(dims) +
           detail::scratch_of<float>(static_cast<std::size_t>(bound));
  }

  static void run(host_executor& exec, lanes const& batch, row_view const& rows, mean_row_options const& how,
                  by_lane<float> const& out) {
    exec.for_each(batch.size(), [&](int i, int worker) {
      lane const one = batch.at(i);
      task(exec, batch, rows, one, exec.scratch(worker)).mean(how, batch.committed(one), out.row(one));
    });
  }

 private:
  /// The sums of one lane.
  class task {
   public:
    task(host_executor const& exec, lanes const& batch, row_view const& rows, lane one, std::span<std::byte> memory)
        : exec_(exec), rows_(rows), lane_(one), at_(rows, one), stretch_(batch.capacity), dims_(rows.rows.channels) {
      detail::scratch_arena arena(memory);
      total_ = arena.take<double>(static_cast<std::size_t>(dims_));
      sum_ = arena.take<float>(static_cast<std::size_t>(dims_));
      row_ = arena.take<float>(static_cast<std::size_t>(dims_));
      weight_ = arena.take<float>(static_cast<std::size_t>(batch.capacity));
    }

    void mean(mean_row_options const& how, int count, float* out) {
      count_ = count;
      std::fill_n(total_, dims_, 0.0);
      norm_ = how.inverse_norms.data != nullptr ? how.inverse_norms.row(lane_) : how.unit ? weight_ : nullptr;
      if (how.unit) weight_ = norm_;
      if (!how.unit) std::fill_n(weight_, count, 1.0f);
      for (int begin = 0; begin < count; begin += stretch_.entries) {
        std::fill_n(sum_, dims_, 0.0f);
        int const end = std::min(count, begin + stretch_.entries);
        for (int e = begin; e < end; e += in_cache) add(e, std::min(end, e + in_cache));
        for (int d = 0; d < dims_; ++d) total_[d] += static_cast<double>(sum_[d]);
      }
      for (int d = 0; d < dims_; ++d) total_[d] /= std::max(count, 1);
      double const shrink = how.unit_mean ? static_cast<double>(detail::inverse_norm(norm_of_total())) : 1.0;
      for (int d = 0; d < dims_; ++d) out[d] = static_cast<float>(total_[d] * shrink);
    }

   private:
    static constexpr int in_cache = 64;  ///< entries whose rows are still in the first-level cache after their norms

    void add(int begin, int end) {
      if (norm_ != nullptr) {
        implementation<ops::row_norm_t, host>::combine_rows(exec_, rows_, lane_, begin, end, inverted{}, norm_);
      }
      bool const plain = rows_.rows.contiguous() && !is_fp8(rows_.rows.element);
      for (int e = begin; e < end; e += detail::rows_at_a_time) {
        plain ? add_rows(e, std::min(detail::rows_at_a_time, end - e))
              : add_each(e, std::min(detail::rows_at_a_time, end - e));
      }
    }
    [[nodiscard]] float norm_of_total() const {
      double sum = 0;
      for (int d = 0; d < dims_; ++d) sum += total_[d] * total_[d];
      return static_cast<float>(std::sqrt(sum));
    }
    struct inverted {
      float operator()(float, float norm) const { return detail::inverse_norm(norm); }
    };

    void add_rows(int first, int count) {
      std::byte const *row[detail::rows_at_a_time], *next[detail::rows_at_a_time];
      at_.find(first, first + count, row);
      bool const more = first + in_cache + count <= count_;
      at_.find(more ? first + in_cache : first, (more ? first + in_cache : first) + count, next);
      auto const add = detail::element_rows_of_isa[exec_.simd_level()].weighted_of(rows_.rows.element);
      add(row, next, weight_ + first, count, dims_, sum_);
    }
    /// Adds rows whose channels are apart, or that have a scale.
    void add_each(int first, int count) {
      auto const* const numbers = reinterpret_cast<std::byte const*>(row_);
      for (int e = first; e < first + count; ++e) {
        detail::load_row(rows_.rows.element, rows_.row(lane_, e), rows_.rows.channel_stride, dims_, row_);
        if (rows_.rows.scales.data != nullptr) detail::scale_row(rows_.scale(lane_, e), dims_, row_);
        detail::element_rows_of_isa[exec_.simd_level()].weighted_f32(&numbers, &numbers, weight_ + e, 1, dims_, sum_);
      }
    }

    host_executor const& exec_;
    row_view const& rows_;
    lane lane_;
    detail::lane_rows at_;
    detail::row_stretches stretch_;
    int dims_;
    int count_ = 0;
    double* total_ = nullptr;
    float* sum_ = nullptr;
    float* row_ = nullptr;
    float* weight_ = nullptr;  ///< of each entry in the sum
    float* norm_ = nullptr;    ///< 1 / norm of each entry's row; null: not needed
  };
};

}  // namespace KVPOLICY_NAMESPACE
