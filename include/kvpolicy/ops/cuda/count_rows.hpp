// SPDX-License-Identifier: Apache-2.0
// Device implementation of count_rows, one warp for each sequence.
#pragma once

#include <kvpolicy/ops/count_rows.hpp>
#include <kvpolicy/ops/cuda/run/page_launches.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

struct count_rows_kernel {
  kvpolicy::lanes lanes;
  row_positions from;
  counted_rows to;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one{lanes.sequence_begin + block.index(), lanes.layer_begin, 0};
    int const* const position = from.position.row(one);
    int* const index = to.index.row(one);
    int const all = from.valid(one);
    int const end = from.end(lanes, one);
    int const counted = rank_by_warp(
        block, all, [&](int r) { return position[r] >= 0 && position[r] < end; },
        [&](int r, int before) { index[before] = r; });
    if (lane_id(block) == 0) *to.number.row(one) = counted;
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::count_rows_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, row_positions const& from, counted_rows const& to) {
    detail::launch_unless_fault(exec, launch_shape{batch.sequences, static_threads<detail::warp_size>{}, 0},
                                detail::count_rows_kernel{batch, from, to});
  }
};

}  // namespace KVPOLICY_NAMESPACE
