// Host implementation of fold.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <algorithm>
#include <kvpolicy/ops/fold.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::fold_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, score_view const& part, ops::fold_step const& step, score_view const& out) {
    constexpr int chunk = 4096;
    int const chunks = (part.lanes.bound + chunk - 1) / chunk;
    exec.for_each(part.lanes.sequences * chunks, [&](int i, int) {
      int const sequence = i / chunks;
      int const begin = i % chunks * chunk;
      int const count = part.lanes.committed({part.lanes.sequence_begin + sequence, part.lanes.layer_begin, 0});
      int const end = std::min(begin + chunk, count);
      if (begin < end) fold_rows(part, step, out, sequence, begin, end);
    });
  }

 private:
  /// Folds the rows of one sequence, for entries [begin, end).
  static void fold_rows(score_view const& part, ops::fold_step const& step, score_view const& out, int sequence,
                        int begin, int end) {
    int const rows = part.segments() / part.lanes.sequences;
    float const* previous = nullptr;
    for (int r = sequence * rows; r < (sequence + 1) * rows; ++r) {
      float const* const from = part.row(r);
      float* const to = out.rows.row(part.lane_of(r));
      bool const overwrite = step.first && to != previous;
      combine(overwrite, step.how, from, begin, end, to);
      previous = to;
    }
    if (step.divide_by == 1) return;
    previous = nullptr;
    for (int r = sequence * rows; r < (sequence + 1) * rows; ++r) {
      float* const to = out.rows.row(part.lane_of(r));
      for (int e = begin; e < end && to != previous; ++e) to[e] /= static_cast<float>(step.divide_by);
      previous = to;
    }
  }

  /// There is one loop per case, because a branch per entry makes it several times slower.
  static void combine(bool overwrite, reduction how, float const* from, int begin, int end, float* to) {
    if (overwrite) {
      std::copy(from + begin, from + end, to + begin);
    } else if (how == reduction::max) {
      for (int e = begin; e < end; ++e) to[e] = higher(to[e], from[e]);
    } else {
      for (int e = begin; e < end; ++e) to[e] += from[e];
    }
  }
  static float higher(float a, float b) {
    float const larger = a > b ? a : b;  // b, if b is NaN
    return a != a ? a : larger;
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
