// SPDX-License-Identifier: Apache-2.0
// Host implementations of update_query_memory and refuse_spans.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>
#include <kvpolicy/ops/update_query_memory.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::refuse_spans_t, host> {
  static void run(host_executor&, lanes const& batch, turn_queries const& turn, char const* call) {
    for (int s = batch.sequence_begin; s < batch.sequence_end(); ++s) refuse_outside(batch, turn, s, call);
  }

 private:
  static void refuse_outside(lanes const& batch, turn_queries const& turn, int sequence, char const* call) {
    if (turn.span_begin == nullptr || turn.span_end == nullptr) return;
    int const rows = turn.span_limit({sequence, batch.layer_begin, 0});
    int const begin = turn.span_begin[sequence];
    int const end = turn.span_end[sequence];
    auto const there = [&] {
      return "sequence " + std::to_string(sequence) + " gives rows 0 to " + std::to_string(rows) + " of its turn";
    };
    expects(begin >= 0 && begin <= rows, call, "turn_queries.span_begin", begin, there);
    expects(end >= begin && end <= rows, call, "turn_queries.span_end", end, there);
  }
};

template <>
struct implementation<ops::update_query_memory_t, host> {
  static std::size_t scratch(shape const& model, int) {
    auto const dims = static_cast<std::size_t>(model.head_dim);
    return detail::scratch_of<double>(dims) + detail::scratch_of<float>(dims);
  }

  static void run(host_executor& exec, lanes const& batch, turn_queries const& turn, query_memory_update const& how,
                  by_lane<float> const& memory) {
    implementation<ops::refuse_spans_t, host>::run(exec, batch, turn, "observe");
    if (turn.rows == 0) return;
    int const group = turn.heads / batch.heads;
    auto const add_rows = detail::element_rows_of_isa[exec.simd_level()].of(turn.element);
    std::int64_t const bytes = std::int64_t{group} * std::min(how.tail, turn.rows) * turn.dims * bytes_of(turn.element);
    exec.for_each_range(batch.size(), bytes, [&](int begin, int end, int worker) {
      detail::scratch_arena arena(exec.scratch(worker));
      double* const sums = arena.take<double>(static_cast<std::size_t>(turn.dims));
      float* const some = arena.take<float>(static_cast<std::size_t>(turn.dims));
      for (int i = begin; i < end; ++i) {
        lane const one = batch.at(i);
        ordinal_range const span = turn.span(one, how.tail);
        for (int h = 0; h < group && span.begin < span.end; ++h) {
          add_span(add_rows, turn, one, one.head * group + h, span, some, sums);
          update(sums, turn.dims, 1.0 / (span.end - span.begin), how, memory.row(one) + std::ptrdiff_t{h} * turn.dims);
        }
      }
    });
  }

 private:
  /// Adds up the rows of a span. 16-bit numbers of sixteen rows are added in float first: their significands have 8 or
  /// 11 bits, so these sums are exact unless one number is some 500 times as large as another.
  KVPOLICY_VECTORIZED static void add_span(detail::element_rows_kernels::function add_rows, turn_queries const& turn,
                                           lane one, int head, ordinal_range span, float* some, double* sums) {
    constexpr int most = 16;
    int const together = turn.element == codec::f32 ? 1 : most;
    std::fill_n(sums, turn.dims, 0.0);
    for (int begin = span.begin; begin < span.end; begin += together) {
      int const count = std::min(together, span.end - begin);
      std::byte const* rows[most];
      for (int r = 0; r < count; ++r) rows[r] = turn.at(one, head, turn.stored(one, begin + r));
      std::fill_n(some, turn.dims, 0.0f);
      add_rows(rows, rows, count, turn.dims, some);
      for (int d = 0; d < turn.dims; ++d) sums[d] += static_cast<double>(some[d]);
    }
  }

  /// memory = unit(keep memory + share sums). What is not kept is not read, so that a NaN there is dropped.
  KVPOLICY_VECTORIZED static void update(double* sums, int dims, double share, query_memory_update const& how,
                                         float* memory) {
    auto const kept = static_cast<double>(how.keep);
    if (how.normalise) share = unit_factor(sums, dims);
    if (how.keep > 0) {
      for (int d = 0; d < dims; ++d) sums[d] = sums[d] * share + kept * static_cast<double>(memory[d]);
    } else {
      for (int d = 0; d < dims; ++d) sums[d] = sums[d] * share + 0.0;
    }
    double const factor = unit_factor(sums, dims);
    for (int d = 0; d < dims; ++d) memory[d] = static_cast<float>(sums[d] * factor);
  }

  /// The factor that makes values a unit vector; 1 if they are zeros. The square of value d is added to sum d mod 32.
  KVPOLICY_VECTORIZED static double unit_factor(double const* values, int dims) {
    constexpr int width = 32;
    double sums[width] = {};
    for (int d = 0; d < dims; d += width) {
      int const some = std::min(width, dims - d);
      for (int i = 0; i < some; ++i) sums[i] += values[d + i] * values[d + i];
    }
    for (int half = width / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    double const norm = std::sqrt(sums[0]);
    return norm > 0 ? 1 / norm : 1;
  }
};

}  // namespace KVPOLICY_NAMESPACE
