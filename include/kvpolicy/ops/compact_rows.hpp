// SPDX-License-Identifier: Apache-2.0
// Verb: shorten lanes to their kept entries, in place.
#pragma once

#include <kvpolicy/ops/entries.hpp>
#include <kvpolicy/ops/gather_rows.hpp>

namespace KVPOLICY_NAMESPACE {
namespace ops {

/// `compact_rows(exec, keep, cache, columns)`: shortens each lane to its kept entries. It runs `refuse_stale`,
/// `gather_rows` and `set_counts` in this order, and then raises `keep.epochs`, if they are given.
///
/// - An applier that lists it in its `verbs` calls it before anything else that writes: on a device, `apply` leaves the
///   refusal of a stale plan to it. `apply` leaves the epochs to it, too.
/// - throws: as `refuse_stale`. Then nothing was changed.
struct compact_rows_t : verb<compact_rows_t> {
  static constexpr auto name = "compact_rows";
  static constexpr bool refuses_stale = true;
  static constexpr bool raises_epochs = true;
  static constexpr void check(keep_set const&, cache const&, std::span<recorded_column const>) {}
};
inline constexpr compact_rows_t compact_rows{};

}  // namespace ops

/// On a backend that runs no kernels it is four verbs, so this header has the implementation for all such backends. For
/// those that run kernels see ops/cuda/compact_rows.hpp.
template <class Backend>
  requires(!requires { requires Backend::runs_kernels; })
struct implementation<ops::compact_rows_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, std::span<recorded_column const> columns) {
    ops::refuse_stale(exec, in.lanes, keep);
    ops::gather_rows(exec, keep, in, columns);
    ops::set_counts(exec, in.lanes, keep);
    if (keep.epochs.data != nullptr) ops::raise_epochs(exec, in.lanes, keep.epochs, nullptr);
  }
};

}  // namespace KVPOLICY_NAMESPACE
