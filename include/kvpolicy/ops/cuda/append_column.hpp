// Device implementation of append_column.
#pragma once

#include <kvpolicy/ops/append_column.hpp>
#include <kvpolicy/ops/cuda/page_launches.hpp>

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
    if (count < 0 || new_numbers.counted(one, count) > lanes.committed(one)) {
      report_fault(block, faults, fault::append_column, i, count);
    }
  }
};

/// Writes number i % most of lane i / most, so that consecutive threads write consecutive entries.
struct append_number {
  kvpolicy::lanes lanes;
  entry_numbers new_numbers;
  by_lane<float> column;
  int most;
  template <class Block>
  KVPOLICY_HD void operator()(Block&, std::int64_t i) const {
    lane const one = lanes.at(static_cast<int>(i / most));
    int const e = static_cast<int>(i % most);
    int const count = new_numbers.count(one);
    if (e >= count || !new_numbers.counts_at(one, e)) return;
    int const left = new_numbers.counted(one, count) - new_numbers.counted(one, e);  // this one and those after it
    column.row(one)[lanes.committed(one) - left] = told_number{}(load(new_numbers.element, new_numbers.at(one, e)));
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::append_column_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, lanes const& batch, entry_numbers const& new_numbers, by_lane<float> const& column) {
    int const most = new_numbers.position.data == nullptr &&
                             (new_numbers.counts.data != nullptr || new_numbers.entries > batch.bound)
                         ? batch.bound
                         : new_numbers.entries;
    detail::launch_each(exec, batch.size(), detail::check_numbers{batch, new_numbers, exec.faults()});
    detail::launch_each_unless_fault(exec, std::int64_t{batch.size()} * most,
                                     detail::append_number{batch, new_numbers, column, most});
  }
};

}  // namespace KVPOLICY_NAMESPACE
