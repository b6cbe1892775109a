// SPDX-License-Identifier: Apache-2.0
// Device implementation of mean_row: one launch adds up the rows of stretches, the next one the stretches of a lane.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/moves/row_numbers.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/mean_row.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// One block for each stretch of a lane. Warps compute the weights of some entries; then each thread adds up a channel
/// of their rows in the order of the entries, so that a sum has the same bits whatever the launch numbers.
struct stretch_sums_kernel {
  kvpolicy::lanes lanes;
  row_view rows;
  row_stretches stretch;
  mean_row_options how;
  float* sums;  ///< [lane][stretch][channels]

  static constexpr int at_once = 128;  ///< entries whose weights are in shared memory

  [[nodiscard]] static std::size_t shared() { return shared_arena::bytes_of_piece<float>(at_once); }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = lanes.at(block.index() / stretch.count);
    int const committed = lanes.committed(one);
    int const begin = block.index() % stretch.count * stretch.entries;
    int const end = committed - begin < stretch.entries ? committed : begin + stretch.entries;
    shared_arena arena(block);
    auto* const weight = arena.take<float>(at_once);
    float* const to = sums + std::int64_t{block.index()} * rows.rows.channels;
    for (int d = block.thread(); d < rows.rows.channels; d += block.threads()) to[d] = 0;
    for (int e = begin; e < end; e += at_once) {
      int const some = end - e < at_once ? end - e : at_once;
      block.sync();
      weigh(block, one, e, some, weight);
      block.sync();
      for (int d = block.thread(); d < rows.rows.channels; d += block.threads()) {
        float sum = to[d];
        for (int i = 0; i < some; ++i) sum += weight[i] * number_at(rows, one, e + i, d);
        to[d] = sum;
      }
    }
  }

 private:
  /// The weights of entries [first, first + count), one warp for each.
  template <class Block>
  KVPOLICY_HD void weigh(Block& block, lane one, int first, int count, float* weight) const {
    for (int i = warp_id(block); i < count; i += block.threads() / warp_size) {
      float const scale = rows.scale(one, first + i);
      bool const needs_norm = how.unit || how.inverse_norms.data != nullptr;
      float const norm = needs_norm ? norm_of(block, rows, one, first + i) : 0;
      if (lane_id(block) != 0) continue;
      weight[i] = how.unit ? scale * inverse_norm(norm) : scale;
      if (how.inverse_norms.data != nullptr) how.inverse_norms.row(one)[first + i] = inverse_norm(norm);
    }
  }
};

/// Adds up the stretches of a lane, one block for each lane.
struct mean_of_stretches_kernel {
  kvpolicy::lanes lanes;
  row_stretches stretch;
  int channels;
  bool unit_mean;
  float const* sums;
  by_lane<float> out;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = lanes.at(block.index());
    int const committed = lanes.committed(one);
    float const* const from = sums + std::int64_t{block.index()} * stretch.count * channels;
    float* const to = out.row(one);
    for (int d = block.thread(); d < channels; d += block.threads()) {
      float sum = 0;
      for (int s = 0; s < stretch.count; ++s) sum += from[std::int64_t{s} * channels + d];
      to[d] = committed > 0 ? sum / static_cast<float>(committed) : 0;
    }
    if (!unit_mean) return;
    block.sync();
    double square = 0;  // every warp computes the norm by itself
    for (int d = lane_id(block); d < channels; d += warp_size)
      square += static_cast<double>(to[d]) * static_cast<double>(to[d]);
    float const shrink = inverse_norm(static_cast<float>(::sqrt(block.reduce_warp(square, plus_op{}))));
    block.sync();
    for (int d = block.thread(); d < channels; d += block.threads()) to[d] *= shrink;
  }
};

}  // namespace detail

/// Takes two launches.
template <kernel_backend Backend>
struct implementation<ops::mean_row_t, Backend> {
  static std::size_t scratch(shape const& model, lanes const& batch) {
    return bytes(batch, model.head_dim > model.value_dim ? model.head_dim : model.value_dim);
  }

  template <class Executor>
  static void run(Executor& exec, lanes const& batch, row_view const& rows, mean_row_options const& how,
                  by_lane<float> const& out) {
    int const channels = rows.rows.channels;
    detail::check_aligned("mean_row", "rows", rows.rows);
    detail::check_scratch("mean_row", exec, bytes(batch, channels));
    detail::row_stretches const stretch(batch.capacity);
    auto* const sums = reinterpret_cast<float*>(exec.scratch());
    detail::stretch_sums_kernel const kernel{batch, rows, stretch, how, sums};
    exec.launch(launch_shape{batch.size() * stretch.count, exec.threads().entry, kernel.shared()}, kernel);
    exec.launch(launch_shape{batch.size(), exec.threads().entry, 0},
                detail::mean_of_stretches_kernel{batch, stretch, channels, how.unit_mean, sums, out});
  }

 private:
  static std::size_t bytes(lanes const& batch, int channels) {
    auto const stretches = static_cast<std::size_t>(detail::row_stretches(batch.capacity).count);
    return static_cast<std::size_t>(batch.size()) * stretches * static_cast<std::size_t>(channels) * sizeof(float);
  }
};

}  // namespace KVPOLICY_NAMESPACE
