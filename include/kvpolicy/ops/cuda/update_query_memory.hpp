// SPDX-License-Identifier: Apache-2.0
// Device implementations of update_query_memory and refuse_spans, one warp for each query head of a lane.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention/query_rows.hpp>
#include <kvpolicy/ops/cuda/run/page_launches.hpp>
#include <kvpolicy/ops/update_query_memory.hpp>
#include <string_view>

namespace KVPOLICY_NAMESPACE {
namespace detail {

struct refuse_span {
  kvpolicy::lanes lanes;
  turn_queries turn;
  fault kind;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block, device_error faults, std::int64_t i) const {
    std::int64_t const s = lanes.sequence_begin + i;
    int const rows = turn.span_limit(lane{static_cast<int>(s), lanes.layer_begin, 0});
    int const begin = turn.span_begin[s];
    int const end = turn.span_end[s];
    if (begin < 0 || begin > rows) {
      report_fault(block, faults, kind, s, begin);
    } else if (end < begin || end > rows) {
      report_fault(block, faults, kind, s, end);
    }
  }
};

struct remember_rows_kernel {
  kvpolicy::lanes lanes;
  turn_queries turn;
  query_memory_update how;
  by_lane<float> memory;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const group = turn.heads / lanes.heads;
    int const warps = block.threads() / warp_size;
    int const i = block.index() * warps + warp_id(block);
    if (i >= lanes.size() * group) return;
    lane const one = lanes.at(i / group);
    ordinal_range const span = turn.span(one, how.tail);
    if (span.begin >= span.end) return;
    double* const mean = shared_arena(block).template take<double>(warps * turn.dims) + warp_id(block) * turn.dims;
    update_row(block, one, i % group, span, mean);
  }

 private:
  /// Updates one row of the memory. One thread adds the rows of a channel, in order.
  template <class Block>
  KVPOLICY_HD void update_row(Block& block, lane one, int h, ordinal_range span, double* mean) const {
    int const head = one.head * (turn.heads / lanes.heads) + h;
    int const size = bytes_of(turn.element);
    float* const row = memory.row(one) + std::int64_t{h} * turn.dims;
    for (int d = lane_id(block); d < turn.dims; d += warp_size) {
      double sum = 0;
      for (int r = span.begin; r < span.end; ++r) {
        sum += static_cast<double>(element_at(turn.element, turn.at(one, head, turn.stored(one, r)) + d * size));
      }
      mean[d] = sum / (span.end - span.begin);
    }
    if (how.normalise) make_unit(block, mean);
    if (how.keep > 0) {  // 0 times a NaN would keep the NaN
      for (int d = lane_id(block); d < turn.dims; d += warp_size) {
        mean[d] += static_cast<double>(how.keep) * static_cast<double>(row[d]);
      }
    }
    make_unit(block, mean);
    for (int d = lane_id(block); d < turn.dims; d += warp_size) row[d] = static_cast<float>(mean[d]);
  }

  template <class Block>
  KVPOLICY_HD void make_unit(Block& block, double* values) const {
    double square = 0;
    for (int d = lane_id(block); d < turn.dims; d += warp_size) square += values[d] * values[d];
    double const norm = ::sqrt(block.reduce_warp(square, plus_op{}));
    if (!(norm > 0)) return;
    for (int d = lane_id(block); d < turn.dims; d += warp_size) values[d] /= norm;
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::refuse_spans_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, turn_queries const& turn, char const* call) {
    if (turn.span_begin == nullptr || turn.span_end == nullptr) return;
    fault const kind = std::string_view(call) == "decide" ? fault::decide_span : fault::span;
    detail::launch_check(exec, batch.sequences, detail::refuse_span{batch, turn, kind});
  }
};

/// The results have the same bits whatever the launch numbers. They differ from the host's in rounding: sums of squares
/// are added in another order, in double.
template <kernel_backend Backend>
struct implementation<ops::update_query_memory_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, turn_queries const& turn, query_memory_update const& how,
                  by_lane<float> const& memory) {
    std::int64_t const row = std::int64_t{turn.dims} * static_cast<int>(sizeof(double));
    expects(row <= detail::default_shared_bytes, "update_query_memory", "queries.dims", turn.dims,
            "a block of threads has 48 KiB for a mean");
    detail::check_aligned("update_query_memory", turn);
    implementation<ops::refuse_spans_t, Backend>::run(exec, batch, turn, "observe");
    if (turn.rows == 0) return;
    std::int64_t const fit = row > 0 ? detail::default_shared_bytes / row : 1;
    auto const most = exec.threads().row;
    int const warps = fit < most / detail::warp_size ? static_cast<int>(fit) : most / detail::warp_size;
    auto const threads = detail::fewer(most, warps * detail::warp_size);
    int const heads = batch.size() * (turn.heads / batch.heads);
    detail::launch_unless_fault(
        exec, launch_shape{(heads + warps - 1) / warps, threads, static_cast<std::size_t>(warps * row)},
        detail::remember_rows_kernel{batch, turn, how, memory});
  }
};

}  // namespace KVPOLICY_NAMESPACE
