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
  locator from;
  locator to;
  copied_planes<> planes;
  int pieces;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = lanes.at(block.index() / pieces);
    lane const there{one.sequence + sequences_apart, one.layer, one.head};
    planes.copy(warp_a_row(block, block.index() % pieces, pieces), std::int64_t{*lanes.count.row(one)},
                [&](std::int64_t e) {
                  int const ordinal = static_cast<int>(e);
                  return copied_entry{one, from.at(one, ordinal), to.at(there, ordinal)};
                });
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::copy_rows_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, cache const& from, cache const& to) {
    detail::copy_rows_kernel kernel{from.lanes, to.lanes.sequence_begin - from.lanes.sequence_begin, from.where,
                                    to.where,   detail::planes_between("copy_rows", from, to),       1};
    kernel.pieces =
        detail::blocks_for_rows(exec, from.lanes.size(), std::int64_t{from.lanes.capacity} * kernel.planes.count());
    detail::launch_unless_fault(exec, launch_shape{from.lanes.size() * kernel.pieces, exec.threads().row, 0}, kernel);
  }
};

}  // namespace KVPOLICY_NAMESPACE
