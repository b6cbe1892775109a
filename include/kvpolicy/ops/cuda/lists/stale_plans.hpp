// SPDX-License-Identifier: Apache-2.0
// Device implementations of the verbs that find plans which do not fit the lanes any more.
#pragma once

#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/ops/cuda/lists/rows.hpp>
#include <kvpolicy/ops/cuda/moves/columns.hpp>
#include <kvpolicy/ops/entries.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

struct stale_check {
  kvpolicy::lanes lanes;
  keep_set keep;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, device_error faults, std::int64_t i) const {
    static_cast<void>(passes(block, faults, i));
  }
  /// True if lane i is as the plan saw it.
  [[nodiscard]] KVPOLICY_HD bool fits(int i) const {
    lane const one = lanes.at(i);
    int const seen = keep.entry_count[segment_of(lanes, keep.decides, i)];
    return counts_fit(lanes, one) && seen == lanes.committed(one) && keep.is_fresh(one);
  }
  /// False if it records a fault for lane i.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD bool passes(Block& block, device_error faults, std::int64_t i) const {
    if (fits(static_cast<int>(i))) return true;
    lane const one = lanes.at(static_cast<int>(i));
    bool const counted = counts_fit(lanes, one);
    int const seen = keep.entry_count[segment_of(lanes, keep.decides, static_cast<int>(i))];
    report_fault(block, faults,
                 !counted                       ? fault::apply_count
                 : seen == lanes.committed(one) ? fault::used_plan
                                                : fault::stale_plan,
                 i, counted ? seen : *lanes.count.row(one));
    return false;
  }
};

/// Raises the epochs of a batch, one thread for each sequence and layer.
struct raise_epoch {
  kvpolicy::lanes lanes;
  by_lane<std::uint64_t> epochs;
  int const* changed;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one = lanes.at(static_cast<int>(i) * lanes.heads);
    if (changed == nullptr || changed[one.sequence] != 0) ++*epochs.row(one);
  }
};

struct ragged_check {
  kvpolicy::lanes lanes;
  keep_set keep;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, device_error faults, std::int64_t i) const {
    int const mine = kept(static_cast<int>(i));
    int const first = kept(static_cast<int>(i) / (lanes.layers() * lanes.heads) * lanes.layers() * lanes.heads);
    if (mine != first) report_fault(block, faults, fault::ragged_lanes, i, mine);
  }
  [[nodiscard]] KVPOLICY_HD int kept(int i) const { return listed_for(keep, lanes, i).count; }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::raise_epochs_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, by_lane<std::uint64_t> const& epochs, int const* changed) {
    int const layers = batch.sequences * batch.layers();
    detail::launch_each_unless_fault(exec, layers, detail::raise_epoch{batch, epochs, changed});
  }
};

template <kernel_backend Backend>
struct implementation<ops::refuse_stale_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, keep_set const& keep) {
    detail::launch_check(exec, batch.size(), detail::stale_check{batch, keep});
  }
};

template <kernel_backend Backend>
struct implementation<ops::refuse_ragged_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, keep_set const& keep) {
    detail::launch_check(exec, batch.size(), detail::ragged_check{batch, keep});
  }
};

}  // namespace KVPOLICY_NAMESPACE
