// SPDX-License-Identifier: Apache-2.0
// Device implementations of gather_rows and permute_columns.
#pragma once

#include <kvpolicy/ops/cuda/moves/move_rows.hpp>
#include <kvpolicy/ops/gather_rows.hpp>

namespace KVPOLICY_NAMESPACE {

/// Takes one launch for up to eight planes and columns, with one block for each slice of each lane's rows in each of
/// them.
template <kernel_backend Backend>
struct implementation<ops::gather_rows_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, std::span<recorded_column const> columns) {
    detail::check_movable("gather_rows", in);
    detail::permute_lanes(exec, detail::kept_lanes{keep, in.lanes}, in, columns, true);
  }
};

template <kernel_backend Backend>
struct implementation<ops::permute_columns_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, std::span<recorded_column const> columns) {
    detail::permute_lanes(exec, detail::kept_lanes{keep, in.lanes}, in, columns, false);
  }
};

}  // namespace KVPOLICY_NAMESPACE
