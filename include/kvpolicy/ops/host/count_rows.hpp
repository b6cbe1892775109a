// Host implementation of count_rows.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <kvpolicy/ops/count_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::count_rows_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, lanes const& batch, row_positions const& from, counted_rows const& to) {
    for (int s = batch.sequence_begin; s < batch.sequence_end(); ++s) {
      lane const one{s, batch.layer_begin, 0};
      int const* const position = from.position.row(one);
      int* const index = to.index.row(one);
      int counted = 0;
      for (int r = 0; r < from.valid(one); ++r) {
        if (position[r] >= 0) index[counted++] = r;
      }
      *to.number.row(one) = counted;
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
