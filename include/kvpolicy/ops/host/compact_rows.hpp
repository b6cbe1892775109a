// Host implementation of compact_rows.
#pragma once

#include <kvpolicy/ops/compact_rows.hpp>
#include <kvpolicy/ops/host/entries.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::compact_rows_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, keep_set const& keep, cache const& in,
                  std::span<recorded_column const> columns) {
    ops::refuse_stale(exec, in.lanes, keep);
    ops::gather_rows(exec, keep, in, columns);
    ops::set_counts(exec, in.lanes, keep);
  }
};

}  // namespace KVPOLICY_NAMESPACE
