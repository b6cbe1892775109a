// Host implementation of append_column.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <kvpolicy/ops/append_column.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::append_column_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, lanes const& batch, entry_numbers const& new_numbers,
                  by_lane<float> const& column) {
    for (int i = 0; i < batch.size(); ++i) {
      lane const one = batch.at(i);
      expects(new_numbers.count(one) >= 0, "observe", "entries", new_numbers.count(one), "a count cannot be negative");
      int const counted = new_numbers.counted(one, new_numbers.count(one));
      expects(counted <= batch.committed(one), "observe", "entries", counted, [&] {
        return "lane " + std::to_string(i) + " holds " + std::to_string(batch.committed(one)) + " entries";
      });
    }
    exec.for_each(batch.size(), [&](int i, int) {
      lane const one = batch.at(i);
      int const count = new_numbers.count(one);
      float* to = column.row(one) + batch.committed(one) - new_numbers.counted(one, count);
      for (int e = 0; e < count; ++e) {
        if (!new_numbers.counts_at(one, e)) continue;
        *to++ = detail::told_number{}(load(new_numbers.element, new_numbers.at(one, e)));
      }
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
