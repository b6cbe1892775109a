// SPDX-License-Identifier: Apache-2.0
// Device implementation of copy_rows, one warp for each entry.
#pragma once

#include <kvpolicy/ops/copy_rows.hpp>
#include <kvpolicy/ops/cuda/admission/promotion_rows.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Block i copies piece i % pieces of lane i / pieces.
struct copy_rows_kernel {
  kvpolicy::lanes lanes;  ///< of the cache that is read
  int sequences_apart;    ///< the difference between the index of a sequence in the other cache and here
  locator from;
  locator to;
  copied_planes<> planes;
  int pieces;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = lanes.at(block.index() / pieces);
    lane const there{one.sequence + sequences_apart, one.layer, one.head};
    int const warps = block.threads() / warp_size;
    for (int e = block.index() % pieces * warps + warp_id(block); e < *lanes.count.row(one); e += pieces * warps) {
      planes.copy({lane_id(block), warp_size}, {one, from.at(one, e), to.at(there, e)});
    }
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::copy_rows_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, cache const& from, cache const& to) {
    detail::copy_rows_kernel kernel{from.lanes, to.lanes.sequence_begin - from.lanes.sequence_begin, from.where,
                                    to.where,   detail::planes_between("copy_rows", from, to),       1};
    kernel.pieces = detail::blocks_for_entries(exec, from.lanes.size(), from.lanes.capacity);
    detail::launch_unless_fault(exec, launch_shape{from.lanes.size() * kernel.pieces, exec.threads().row, 0}, kernel);
  }
};

}  // namespace KVPOLICY_NAMESPACE
