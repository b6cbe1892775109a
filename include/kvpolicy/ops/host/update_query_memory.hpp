// Host implementations of update_query_memory and refuse_spans.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/host/element_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/update_query_memory.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::refuse_spans_t, host> {
  static constexpr bool provided = true;

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
  static constexpr bool provided = true;

  static std::size_t scratch(shape const& model, int) {
    auto const dims = static_cast<std::size_t>(model.head_dim);
    return detail::scratch_of<double>(dims) + detail::scratch_of<float>(dims);
  }

  static void run(host_executor& exec, lanes const& batch, turn_queries const& turn, query_memory_update const& how,
                  by_lane<float> const& memory) {
    implementation<ops::refuse_spans_t, host>::run(exec, batch, turn, "observe");
    if (turn.rows == 0) return;
    int const group = turn.heads / batch.heads;
    exec.for_each(batch.size(), [&](int i, int worker) {
      lane const one = batch.at(i);
      ordinal_range const span = turn.span(one, how.tail);
      for (int h = 0; h < group && span.begin < span.end; ++h) {
        float* const row = memory.row(one) + static_cast<std::ptrdiff_t>(h) * turn.dims;
        update_row(exec.simd_level(), turn, one, one.head * group + h, span, how, exec.scratch(worker), row);
      }
    });
  }

 private:
  static void update_row(isa simd_level, turn_queries const& turn, lane one, int head, ordinal_range const& span,
                         query_memory_update const& how, std::span<std::byte> scratch, float* memory) {
    detail::scratch_arena arena(scratch);
    auto const dims = static_cast<std::size_t>(turn.dims);
    double* const mean = arena.take<double>(dims);
    float* const row = arena.take<float>(dims);
    std::fill_n(mean, dims, 0.0);
    for (int r = span.begin; r < span.end; ++r) {
      std::byte const* const from = turn.at(one, head, turn.stored(one, r));
      detail::widen_row(simd_level, turn.element, from, turn.dims, row);
      for (std::size_t d = 0; d < dims; ++d) mean[d] += static_cast<double>(row[d]);
    }
    for (std::size_t d = 0; d < dims; ++d) mean[d] /= span.end - span.begin;
    if (how.normalise) make_unit(mean, dims);
    for (std::size_t d = 0; d < dims && how.keep > 0; ++d) {
      mean[d] += static_cast<double>(how.keep) *
                 static_cast<double>(memory[d]);  // if keep is 0, a NaN in the old memory is dropped
    }
    make_unit(mean, dims);
    for (std::size_t d = 0; d < dims; ++d) memory[d] = static_cast<float>(mean[d]);
  }

  static void make_unit(double* values, std::size_t count) {
    double square = 0;
    for (std::size_t i = 0; i < count; ++i) square += values[i] * values[i];
    double const norm = std::sqrt(square);
    for (std::size_t i = 0; i < count && norm > 0; ++i) values[i] /= norm;
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
