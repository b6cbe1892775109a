// Host implementation of count_rows.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <algorithm>
#include <kvpolicy/ops/count_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/listed_marks.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::count_rows_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, lanes const& batch, row_positions const& from, counted_rows const& to) {
    for (int s = batch.sequence_begin; s < batch.sequence_end(); ++s) {
      lane const one{s, batch.layer_begin, 0};
      int const* const position = from.position.row(one);
      int* const index = to.index.row(one);
      *to.number.row(one) = list(exec.simd_level(), position, from.valid(one), index);
    }
  }

 private:
  /// Lists the rows at positions from 0 on, a stretch at a time, and returns their number. Nothing is written behind
  /// them.
  static int list(isa simd_level, int const* position, int rows, int* index) {
    constexpr int stretch = 1024;
    unsigned char marks[stretch];
    int found[stretch];
    int counted = 0;
    for (int begin = 0; begin < rows; begin += stretch) {
      int const some = std::min(stretch, rows - begin);
      for (int r = 0; r < some; ++r) marks[r] = position[begin + r] >= 0 ? 1 : 0;
      int const more = detail::list_marked_for(simd_level)(marks, some, found);
      for (int i = 0; i < more; ++i) index[counted + i] = begin + found[i];
      counted += more;
    }
    return counted;
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
