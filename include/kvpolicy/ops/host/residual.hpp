// SPDX-License-Identifier: Apache-2.0
// Host implementation of residual: workers process tasks of some entries.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/all_reduce.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/residual.hpp>
#include <kvpolicy/ops/host/residual_task.hpp>
#include <kvpolicy/ops/host/segments.hpp>
#include <kvpolicy/ops/residual.hpp>
#include <optional>

namespace KVPOLICY_NAMESPACE {
template <>
struct implementation<ops::residual_t, host> {
  using sizes = residual_sizes;

  template <class Executor>
  static void run(Executor& exec, token_features const& features, turn_queries const& turn, residual_head const& head,
                  residual_options const& how, score_view const& out, float* temp_storage) {
    among_ranks(exec, ranks_of(exec), features, turn, head, how, out, temp_storage);
  }

  static void among_ranks(host_executor& exec, int ranks, token_features const& features, turn_queries const& turn,
                          residual_head const& head, residual_options const& how, score_view const& out,
                          float* temp_storage) {
    if (head.alpha == 0) return;
    int const layers = out.lanes.layers() * ranks;
    for (int sequence = 0; sequence < out.lanes.sequences; ++sequence) {
      float* const memory = features.row(sequence, 0);
      detail::residual_of_isa[exec.simd_level()].divide(memory, features.dims, static_cast<float>(layers * turn.heads),
                                                        memory);
      one_sequence(exec, features, layers * out.lanes.heads, span_of(out.lanes, turn, sequence, how), head, sequence,
                   out, temp_storage);
    }
  }

 private:
  /// The live entries at the positions of the span.
  static ordinal_range span_of(lanes const& batch, turn_queries const& turn, int sequence,
                               residual_options const& how) {
    lane const one{batch.sequence_begin + sequence, batch.layer_begin, 0};
    ordinal_range const rows = turn.span(one, how.tail);
    if (!how.cross_attention || rows.begin >= rows.end) return {0, 0};
    lane_entries const live{one, batch.committed(one), 0, batch.position.row(one)};
    return {live.first_at(turn.position_of(one, rows.begin)), live.first_at(turn.position_of(one, rows.end - 1) + 1)};
  }

  static void one_sequence(host_executor& exec, token_features const& features, int terms, ordinal_range const& span,
                           residual_head const& head, int sequence, score_view const& out, float* temp_storage) {
    int const count = out.lanes.committed(out.lane_of(sequence));
    int const dims = features.dims;
    float* const row = features.row(sequence, 1);
    detail::folded_head const folded(head, features.row(sequence, 0), terms, temp_storage);
    float const* const of_span = row + std::ptrdiff_t{span.begin} * dims;
    int const span_rows = span.end - span.begin;
    std::optional<detail::folded_span> attended;
    if (span_rows > 0 && span_rows <= detail::folded_span::most) {
      attended.emplace(exec, head, folded, of_span, span_rows, terms, temp_storage);
    }
    sizes const all(head, out.lanes.capacity);
    int const tasks = static_cast<int>(all.tasks());
    exec.for_each(tasks, [&](int task, int) {
      detail::residual_task one(exec, head, folded, temp_storage + task * all.task());
      for (int e = task * sizes::entries_of_a_task; e < count; e += tasks * sizes::entries_of_a_task) {
        float const* const from = row + std::ptrdiff_t{e} * dims;
        int const some = std::min(sizes::entries_of_a_task, count - e);
        float* const scores = out.row(sequence) + e;
        if (attended) {
          one.run(from, some, *attended, scores);
        } else if (span_rows > 0) {
          one.run(from, some, of_span, span_rows, scores);
        } else {
          one.run(from, some, scores);
        }
      }
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
