// SPDX-License-Identifier: Apache-2.0
// Device implementation of append_column.
#pragma once

#include <kvpolicy/ops/append_column.hpp>
#include <kvpolicy/ops/cuda/run/page_launches.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

struct check_numbers {
  kvpolicy::lanes lanes;
  entry_numbers new_numbers;
  device_error faults;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block, std::int64_t i) const {
    lane const one = lanes.at(static_cast<int>(i));
    int const count = new_numbers.count(one);
    if (count < 0 || count > lanes.committed(one)) report_fault(block, faults, fault::append_column, i, count);
  }
};

/// Writes number i % most of lane i / most, so that consecutive threads write consecutive entries.
struct append_number {
  kvpolicy::lanes lanes;
  entry_numbers new_numbers;
  by_lane<float> column;
  int most;
  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one = lanes.at(static_cast<int>(i / most));
    int const e = static_cast<int>(i % most);
    int const count = new_numbers.count(one);
    if (e >= count) return;
    column.row(one)[lanes.committed(one) - count + e] =
        told_number{}(load(new_numbers.element, new_numbers.at(one, e)));
  }
};

/// Calls visit(i, before) for each number of a lane that counts; `before` is how many of the numbers before it count.
/// Returns how many count in all. One warp, all threads of it.
template <class Block, class Visit>
KVPOLICY_HD int visit_counted(Block& block, lanes const& batch, entry_numbers const& numbers,
                              by_lane<float> const& column, lane one, Visit const& visit) {
  int const all = numbers_of_committed(batch, numbers, column, one);  // of all threads, before one of them writes
  int const newest = batch.newest(one);
  return rank_by_warp(block, all, [&](int i) { return numbers.counts_at(one, i, newest); }, visit);
}

/// Checks, or writes, the numbers that count of one lane for each block of a warp.
struct counted_numbers_kernel {
  kvpolicy::lanes lanes;
  entry_numbers new_numbers;
  by_lane<float> column;
  device_error faults;
  bool writes;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = lanes.at(block.index());
    int const counted = visit_counted(block, lanes, new_numbers, column, one, [](int, int) {});
    int const committed = lanes.committed(one);
    if (!writes) {
      int const count = new_numbers.count(one);
      bool const wrong = count < 0 || counted > committed;
      if (wrong && lane_id(block) == 0) report_fault(block, faults, fault::append_column, block.index(), count);
      return;
    }
    float* const to = column.row(one) + committed - counted;
    visit_counted(block, lanes, new_numbers, column, one, [&](int i, int before) {
      to[before] = told_number{}(load(new_numbers.element, new_numbers.at(one, i)));
    });
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::append_column_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, entry_numbers const& new_numbers, by_lane<float> const& column) {
    if (new_numbers.position.data != nullptr || batch.in_flight != nullptr)
      return run_counted(exec, batch, new_numbers, column);
    int const most = new_numbers.counts.data != nullptr || new_numbers.entries > batch.capacity ? batch.capacity
                                                                                                : new_numbers.entries;
    detail::launch_each(exec, batch.size(), detail::check_numbers{batch, new_numbers, exec.faults()});
    detail::launch_each_unless_fault(exec, std::int64_t{batch.size()} * most,
                                     detail::append_number{batch, new_numbers, column, most});
  }

 private:
  template <class Executor>
  static void run_counted(Executor& exec, lanes const& batch, entry_numbers const& new_numbers,
                          by_lane<float> const& column) {
    launch_shape const shape{batch.size(), static_threads<detail::warp_size>{}, 0};
    exec.launch(shape, detail::counted_numbers_kernel{batch, new_numbers, column, exec.faults(), false});
    detail::launch_unless_fault(exec, shape,
                                detail::counted_numbers_kernel{batch, new_numbers, column, exec.faults(), true});
  }
};

}  // namespace KVPOLICY_NAMESPACE
