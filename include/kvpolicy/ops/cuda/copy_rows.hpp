// SPDX-License-Identifier: Apache-2.0
// Device implementation of copy_rows.
#pragma once

#include <kvpolicy/ops/copy_rows.hpp>
#include <kvpolicy/ops/cuda/admission/promotion_rows.hpp>

namespace KVPOLICY_NAMESPACE {

template <kernel_backend Backend>
struct implementation<ops::copy_rows_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, cache const& from, cache const& to) {
    detail::copy_entries_kernel kernel{from.lanes, from.where, to.where, detail::planes_between("copy_rows", from, to)};
    kernel.sequences_apart = to.lanes.sequence_begin - from.lanes.sequence_begin;
    detail::launch_copies(exec, kernel);
  }
};

}  // namespace KVPOLICY_NAMESPACE
