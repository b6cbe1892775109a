// Host implementations of update_query_memory and refuse_spans.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <algorithm>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/query_memory_rows.hpp>
#include <kvpolicy/ops/host/row_sum_kernels.hpp>
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
    auto const group = static_cast<std::size_t>(model.group());
    return detail::scratch_of<double>(group * static_cast<std::size_t>(model.head_dim)) +
           detail::scratch_of<double>(group);
  }

  static void run(host_executor& exec, lanes const& batch, turn_queries const& turn, query_memory_update const& how,
                  by_lane<float> const& memory) {
    implementation<ops::refuse_spans_t, host>::run(exec, batch, turn, "observe");
    if (turn.rows == 0) return;
    int const group = turn.heads / batch.heads;
    auto const add_rows = detail::row_sums_for(exec.simd_level()).of(turn.element);
    detail::memory_row_kernels const& rows = detail::memory_rows_for(exec.simd_level());
    std::int64_t const bytes = std::int64_t{group} * std::min(how.tail, turn.rows) * turn.dims * bytes_of(turn.element);
    exec.for_each_range(batch.size(), bytes, [&](int begin, int end, int worker) {
      for (int i = begin; i < end; ++i) {
        lane const one = batch.at(i);
        ordinal_range const span = turn.span(one, how.tail);
        if (span.begin >= span.end) continue;
        detail::scratch_arena arena(exec.scratch(worker));
        double* const sums = arena.take<double>(static_cast<std::size_t>(group * turn.dims));
        double* const squares = arena.take<double>(static_cast<std::size_t>(group));
        float* const remembered = memory.row(one);
        for (int d = 0; d < group * turn.dims; d += detail::floats_of_a_line) __builtin_prefetch(remembered + d, 1, 2);
        add_span(add_rows, turn, one, group, span, sums);
        double const share = 1.0 / (span.end - span.begin);
        for (int h = 0; h < group; ++h) {
          std::ptrdiff_t const first = std::ptrdiff_t{h} * turn.dims;
          squares[h] = rows.mix(sums + first, turn.dims, share, how, remembered + first);
        }
        for (int h = 0; h < group; ++h) {
          std::ptrdiff_t const first = std::ptrdiff_t{h} * turn.dims;
          rows.put(sums + first, turn.dims, detail::unit_factor(squares[h]), remembered + first);
        }
      }
    });
  }

 private:
  /// Adds up the rows of a span for all query heads of a lane. Heads have their rows in the same places, which
  /// are found once.
  static void add_span(detail::row_sum_kernels::function add_rows, turn_queries const& turn, lane one, int group,
                       ordinal_range const& span, double* sums) {
    constexpr int most = 32;
    std::int64_t offset[most + detail::rows_ahead];
    for (int begin = span.begin; begin < span.end; begin += most) {
      int const some = std::min(most, span.end - begin);
      for (int r = 0; r < some; ++r) offset[r] = turn.stored(one, begin + r) * turn.row;
      for (int h = 0; h < group; ++h) {
        int const head = one.head * group + h;
        std::int64_t const next = head + 1 < turn.heads ? turn.head : 0;
        for (int r = 0; r < detail::rows_ahead; ++r) offset[some + r] = next + offset[std::min(r, some - 1)];
        add_rows({turn.at(one, head, 0), offset}, some, turn.dims, begin > span.begin,
                 sums + std::ptrdiff_t{h} * turn.dims);
      }
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
