// Host implementation of fold.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <algorithm>
#include <kvpolicy/ops/fold.hpp>
#include <kvpolicy/ops/host/element_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::fold_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, score_view const& part, ops::fold_step const& step, score_view const& out) {
    constexpr int chunk = 1024;
    int const chunks = (part.lanes.bound + chunk - 1) / chunk;
    exec.for_each(part.lanes.sequences * chunks, [&](int i, int) {
      int const sequence = i / chunks;
      int const begin = i % chunks * chunk;
      int const count = part.lanes.committed({part.lanes.sequence_begin + sequence, part.lanes.layer_begin, 0});
      int const end = std::min(begin + chunk, count);
      if (begin < end) fold_rows(exec.simd_level(), part, step, out, sequence, {begin, end});
    });
  }

 private:
  /// Folds the rows of one sequence, for some entries.
  static void fold_rows(isa simd_level, score_view const& part, ops::fold_step const& step, score_view const& out,
                        int sequence, ordinal_range const& which) {
    int const rows = part.segments() / part.lanes.sequences;
    int const last = (sequence + 1) * rows;
    for (int r = sequence * rows; r < last;) {
      float* const to = out.rows.row(part.lane_of(r));
      if (step.first) std::copy(part.row(r) + which.begin, part.row(r) + which.end, to + which.begin);
      if (step.first) ++r;
      while (r < last && out.rows.row(part.lane_of(r)) == to)
        r += combine(simd_level, part, step.how, r, last, to, out, which);
      for (int e = which.begin; e < which.end && step.divide_by != 1; ++e) to[e] /= static_cast<float>(step.divide_by);
    }
  }

  /// Combines a few rows of one segment, from row r on, in their order; returns how many.
  static int combine(isa simd_level, score_view const& part, reduction how, int r, int last, float* to,
                     score_view const& out, ordinal_range const& which) {
    std::byte const* rows[detail::rows_at_a_time];
    int some = 0;
    while (some < detail::rows_at_a_time && r + some < last && out.rows.row(part.lane_of(r + some)) == to) {
      rows[some] = reinterpret_cast<std::byte const*>(part.row(r + some) + which.begin);
      ++some;
    }
    auto const& kernels = detail::element_rows_for(simd_level);
    (how == reduction::max ? kernels.max_f32 : kernels.f32)(rows, some, which.end - which.begin, to + which.begin);
    return some;
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
