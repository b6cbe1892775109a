// Device implementations of gather_rows and carry_entries.
#pragma once

#include <kvpolicy/ops/cuda/move_rows.hpp>
#include <kvpolicy/ops/gather_rows.hpp>

namespace KVPOLICY_NAMESPACE {

/// One launch, of a block for a slice of every lane's rows of every plane.
template <kernel_backend Backend>
struct implementation<ops::gather_rows_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, std::span<held_column const> columns) {
    detail::check_movable("gather_rows", in);
    detail::carry_lanes(exec, detail::kept_lanes{keep, in.who}, in, columns, true);
  }
};

template <kernel_backend Backend>
struct implementation<ops::carry_entries_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, std::span<held_column const> columns) {
    detail::carry_lanes(exec, detail::kept_lanes{keep, in.who}, in, columns, false);
  }
};

}  // namespace KVPOLICY_NAMESPACE
