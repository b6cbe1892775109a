// SPDX-License-Identifier: Apache-2.0
// Device implementation of fold: one thread for each entry, which combines the rows in the order of their lanes.
#pragma once

#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/fold.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Combines `value` with `into`; the first of a series replaces it. For a maximum a NaN on either side stays, and of
/// equal values the last one.
KVPOLICY_HD inline void fold_into(float& into, float value, bool maximum, bool first) {
  if (first) {
    into = value;
  } else if (maximum) {
    into = into > value || into != into ? into : value;
  } else {
    into += value;
  }
}

/// Handles entry i % bound of the rows of sequence i / bound.
struct fold_body {
  score_view part;
  ops::fold_step step;
  score_view out;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    int const bound = part.lanes.capacity;
    int const sequence = static_cast<int>(i / bound);
    int const e = static_cast<int>(i % bound);
    if (e >= part.lanes.committed(lane{part.lanes.sequence_begin + sequence, part.lanes.layer_begin, 0})) return;
    int const rows = part.segments() / part.lanes.sequences;
    float* current = nullptr;
    float value = 0;
    for (int r = sequence * rows; r < (sequence + 1) * rows; ++r) {
      lane const of = part.lane_of(r);
      float* const to = out.rows.row(of) + e;
      bool const another = to != current;
      if (another) put(current, value);
      if (another && !step.first) value = *to;
      current = to;
      fold_into(value, part.rows.row(of)[e], step.how == reduction::max, another && step.first);
    }
    put(current, value);
  }

 private:
  KVPOLICY_HD void put(float* to, float value) const {
    if (to != nullptr) *to = step.divide_by == 1 ? value : value / static_cast<float>(step.divide_by);
  }
};

}  // namespace detail

/// Takes one launch and no scratch.
template <kernel_backend Backend>
struct implementation<ops::fold_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, score_view const& part, ops::fold_step const& step, score_view const& out) {
    std::int64_t const entries = std::int64_t{part.lanes.sequences} * part.lanes.capacity;
    detail::launch_each(exec, entries, detail::fold_body{part, step, out});
  }
};

}  // namespace KVPOLICY_NAMESPACE
