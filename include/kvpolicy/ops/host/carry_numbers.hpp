// Host implementation of carry_numbers.
#pragma once

#include <kvpolicy/ops/carry_numbers.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::carry_numbers_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, lanes const& who, entry_numbers const& fresh, by_lane<float> const& column) {
    for (int i = 0; i < who.size(); ++i) {
      lane const one = who.at(i);
      expects(fresh.count(one) >= 0, "observe", "entries", fresh.count(one), "a count cannot be negative");
      expects(fresh.count(one) <= who.committed(one), "observe", "entries", fresh.count(one), [&] {
        return "lane " + std::to_string(i) + " holds " + std::to_string(who.committed(one)) + " entries";
      });
    }
    exec.for_each(who.size(), [&](int i, int) {
      lane const one = who.at(i);
      int const count = fresh.count(one);
      float* const to = column.row(one) + who.committed(one) - count;
      for (int e = 0; e < count; ++e) to[e] = detail::told_number{}(load(fresh.element, fresh.at(one, e)));
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
