// Device implementation of carry_numbers.
#pragma once

#include <kvpolicy/ops/carry_numbers.hpp>
#include <kvpolicy/ops/cuda/page_launches.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

struct refuse_numbers {
  lanes who;
  entry_numbers fresh;
  fault_word faults;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block, std::int64_t i) const {
    lane const one = who.at(static_cast<int>(i));
    int const count = fresh.count(one);
    if (count < 0 || count > who.committed(one)) tell_fault(block, faults, fault::carry_numbers, i, count);
  }
};

/// Number i % most of lane i / most: consecutive threads on consecutive entries.
struct carry_number {
  lanes who;
  entry_numbers fresh;
  by_lane<float> column;
  int most;
  template <class Block>
  KVPOLICY_HD void operator()(Block&, std::int64_t i) const {
    lane const one = who.at(static_cast<int>(i / most));
    int const e = static_cast<int>(i % most);
    int const count = fresh.count(one);
    if (e >= count) return;
    column.row(one)[who.committed(one) - count + e] = told_number{}(load(fresh.element, fresh.at(one, e)));
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::carry_numbers_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor>
  static void run(Executor& exec, lanes const& who, entry_numbers const& fresh, by_lane<float> const& column) {
    int const most = fresh.counts.data != nullptr || fresh.entries > who.bound ? who.bound : fresh.entries;
    detail::launch_each(exec, who.size(), detail::refuse_numbers{who, fresh, exec.faults()});
    detail::launch_each_change(exec, std::int64_t{who.size()} * most, detail::carry_number{who, fresh, column, most});
  }
};

}  // namespace KVPOLICY_NAMESPACE
