// SPDX-License-Identifier: Apache-2.0
// Device implementation of copy_rows, one warp for each row.
#pragma once

#include <kvpolicy/ops/copy_rows.hpp>
#include <kvpolicy/ops/cuda/admission/promotion_rows.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Block i copies piece i % pieces of lane i / pieces.
struct copy_rows_kernel {
  kvpolicy::lanes lanes;  ///< of the cache that is read
  int sequences_apart;    ///< the difference between the index of a sequence in the other cache and here
  entry_rows from;
  entry_rows to;
  int pieces;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = lanes.at(block.index() / pieces);
    lane const there{one.sequence + sequences_apart, one.layer, one.head};
    int const planes = to.planes.count;
    int const warps = block.threads() / warp_size;
    std::int64_t const rows = std::int64_t{*lanes.count.row(one)} * planes;
    std::int64_t const step = std::int64_t{pieces} * warps;
    for (std::int64_t i = block.index() % pieces * warps + warp_id(block); i < rows; i += step) {
      int const e = static_cast<int>(i / planes);
      int const p = static_cast<int>(i % planes);
      byte_rows const& read = from.planes.of[p];
      byte_rows const& written = to.planes.of[p];
      std::byte const* const source = read.row(one.layer, from.where.at(one, e), one.head);
      std::byte* const target = written.row(there.layer, to.where.at(there, e), there.head);
      if (source != target) copy_row(lane_id(block), warp_size, read, source, written, target);
    }
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::copy_rows_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, cache const& from, cache const& to) {
    detail::copy_rows_kernel kernel{from.lanes, to.lanes.sequence_begin - from.lanes.sequence_begin,
                                    detail::entry_rows_of("copy_rows", from), detail::entry_rows_of("copy_rows", to),
                                    1};
    kernel.pieces =
        detail::blocks_for_rows(exec, from.lanes.size(), std::int64_t{from.lanes.capacity} * kernel.to.planes.count);
    detail::launch_unless_fault(exec, launch_shape{from.lanes.size() * kernel.pieces, exec.threads().row, 0}, kernel);
  }
};

}  // namespace KVPOLICY_NAMESPACE
