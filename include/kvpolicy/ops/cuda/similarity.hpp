// SPDX-License-Identifier: Apache-2.0
// Device implementation of similarity: one launch for the average of each row, one for the sums of columns.
#pragma once

#include <kvpolicy/ops/cuda/moves/row_numbers.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/cuda/run/page_launches.hpp>
#include <kvpolicy/ops/mean_row.hpp>
#include <kvpolicy/ops/similarity.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// What both launches share: [lane][channels] sums of unit keys, and for each entry 1 / norm and the average of its
/// row.
struct similarity_task {
  row_view from;
  score_view out;
  float* totals;
  float* inverse_norms;
  float* averages;

  [[nodiscard]] KVPOLICY_HD static bool competes(float mark) { return mark != same_bits<float>(0xFF800000u); }
  [[nodiscard]] KVPOLICY_HD std::int64_t at(int segment, int e) const {
    return std::int64_t{segment} * out.lanes.capacity + e;
  }
  /// The product of two entries' keys. Collective.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD float product(Block& block, lane one, int i, int j) const {
    float sum = 0;
    for (int d = lane_id(block); d < from.rows.channels; d += warp_size)
      sum += number_at(from, one, i, d) * number_at(from, one, j, d);
    return block.reduce_warp(sum, plus_op{}) * from.scale(one, i) * from.scale(one, j);
  }
};

/// One block for each lane.
struct similarity_averages_kernel {
  similarity_task task;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index();
    lane const one = task.out.lane_of(segment);
    int const count = task.out.lanes.committed(one), dims = task.from.rows.channels;
    float const* const mark = task.out.row(segment);
    float* const total = task.totals + std::int64_t{segment} * dims;
    int among = 0;
    for (int e = warp_id(block); e < count; e += block.threads() / warp_size) {
      float const norm = norm_of(block, task.from, one, e);
      if (lane_id(block) == 0) task.inverse_norms[task.at(segment, e)] = inverse_norm(norm);
    }
    block.sync();
    for (int d = block.thread(); d < dims; d += block.threads()) {
      double sum = 0;
      for (int e = 0; e < count; ++e) {
        if (task.competes(mark[e])) sum += static_cast<double>(unit(one, segment, e, d));
      }
      total[d] = static_cast<float>(sum);
    }
    for (int e = 0; e < count; ++e) among += task.competes(mark[e]) ? 1 : 0;
    block.sync();
    for (int e = warp_id(block); e < count; e += block.threads() / warp_size) {
      double all = 0;
      for (int d = lane_id(block); d < dims; d += warp_size) {
        auto const x = static_cast<double>(unit(one, segment, e, d));
        all += x * static_cast<double>(total[d]) - x * x;
      }
      all = block.reduce_warp(all, plus_op{});
      if (lane_id(block) == 0) task.averages[task.at(segment, e)] = static_cast<float>(all / among);
    }
  }

 private:
  [[nodiscard]] KVPOLICY_HD float unit(lane one, int segment, int e, int d) const {
    return number_at(task.from, one, e, d) * task.inverse_norms[task.at(segment, e)] * task.from.scale(one, e);
  }
};

/// One warp for each entry, which goes through the rows in their order.
struct similarity_kernel {
  similarity_task task;
  int blocks_of_lane;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index() / blocks_of_lane;
    lane const one = task.out.lane_of(segment);
    int const count = task.out.lanes.committed(one);
    warp_stride const stride = stride_of_warp(block, blocks_of_lane);
    float* const row = task.out.row(segment);
    for (int j = stride.first; j < count; j += stride.step) {
      if (!task.competes(row[j])) continue;
      double sum = 0;
      int among = 0;
      for (int i = 0; i < count; ++i) {
        if (!task.competes(row[i])) continue;
        ++among;
        if (i == j) continue;
        float const cosine = task.product(block, one, i, j) * task.inverse_norms[task.at(segment, i)] *
                             task.inverse_norms[task.at(segment, j)];
        if (!(cosine < task.averages[task.at(segment, i)])) sum += static_cast<double>(cosine);
      }
      if (lane_id(block) == 0) row[j] = static_cast<float>(sum / among);
    }
  }
};

}  // namespace detail

/// Takes two launches.
template <kernel_backend Backend>
struct implementation<ops::similarity_t, Backend> {
  static std::size_t scratch(shape const& model, lanes const& batch) { return bytes(batch, model.head_dim); }

  template <class Executor>
  static void run(Executor& exec, keys const& from, score_view const& out) {
    int const channels = from.rows.channels;
    detail::check_aligned("similarity", "keys", from.rows);
    detail::check_scratch("similarity", exec, bytes(out.lanes, channels));
    auto* const totals = reinterpret_cast<float*>(exec.scratch());
    float* const norms = totals + std::int64_t{out.lanes.size()} * channels;
    detail::similarity_task const task{from, out, totals, norms,
                                       norms + std::int64_t{out.lanes.size()} * out.lanes.capacity};
    exec.launch(launch_shape{out.segments(), exec.threads().entry, 0}, detail::similarity_averages_kernel{task});
    constexpr int blocks = 32;
    exec.launch(launch_shape{out.segments() * blocks, exec.threads().entry, 0},
                detail::similarity_kernel{task, blocks});
  }

 private:
  static std::size_t bytes(lanes const& batch, int channels) {
    auto const each = static_cast<std::size_t>(channels) + 2 * static_cast<std::size_t>(batch.capacity);
    return static_cast<std::size_t>(batch.size()) * each * sizeof(float);
  }
};

}  // namespace KVPOLICY_NAMESPACE
