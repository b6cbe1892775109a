// SPDX-License-Identifier: Apache-2.0
// Device implementation of leverage: a block computes a lane, whose matrices are in scratch.
#pragma once

#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/lane_leverages.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

template <class Among>
struct leverage_kernel {
  score_view out;
  row_view rows;
  leverage_options how;
  Among among;
  double* memory;  ///< for each lane
  device_error faults;

  [[nodiscard]] static std::size_t shared(int dims) {
    return shared_arena::bytes_of_piece<double>(static_cast<int>(leverage_memory::of_batch(dims)));
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const dims = rows.rows.channels, index = block.index();
    shared_arena arena(block);
    auto* const batch = arena.take<double>(static_cast<int>(leverage_memory::of_batch(dims)));
    double* const of_lane = memory + static_cast<std::size_t>(index) * leverage_memory::of_lane(dims);
    lane_leverages lane(block, rows, how, among, out.lanes, out.lane_of(index),
                        leverage_memory::in(of_lane, batch, dims));
    if (lane.compute(out.row(index)) || block.thread() != 0) return;
    report_fault(block, faults, fault::gram_matrix, index, dims);
  }
};

}  // namespace detail

/// Takes one launch.
template <kernel_backend Backend>
struct implementation<ops::leverage_t, Backend> {
  static std::size_t scratch(shape const& model, lanes const& batch) {
    return bytes(batch, model.head_dim > model.value_dim ? model.head_dim : model.value_dim);
  }

  template <class Executor, class Among>
  static void run(Executor& exec, row_view const& rows, leverage_options const& how, Among const& among,
                  score_view const& out) {
    int const dims = rows.rows.channels;
    detail::check_aligned("leverage", "rows", rows.rows);
    detail::check_scratch("leverage", exec, bytes(out.lanes, dims));
    using kernel = detail::leverage_kernel<Among>;
    exec.launch(launch_shape{out.segments(), exec.threads().entry, kernel::shared(dims)},
                kernel{out, rows, how, among, reinterpret_cast<double*>(exec.scratch()), exec.faults()});
  }

 private:
  static std::size_t bytes(lanes const& batch, int dims) {
    return static_cast<std::size_t>(batch.size()) * detail::leverage_memory::of_lane(dims) * sizeof(double);
  }
};

}  // namespace KVPOLICY_NAMESPACE
