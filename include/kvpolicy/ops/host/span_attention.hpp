// SPDX-License-Identifier: Apache-2.0
// Host implementation of span_attention: a worker computes a lane.
#pragma once

#include <kvpolicy/ops/host/attention/lane_spans.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/span_attention.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::span_attention_t, host> {
  static std::size_t scratch(shape const& model, int bound) { return detail::lane_spans::scratch(model, bound); }

  static void run(host_executor& exec, keys const& from, query_view const& rows, row_spans const& spans,
                  span_attention_options const& how, score_view const& out) {
    if (rows.rows > 0) detail::check_sinks("span_attention", "keys.logits", from.logits.sinks, out.lanes, rows.heads);
    keys const own{detail::keys_of_rows(rows, spans), from.logits};
    exec.for_each(out.segments(), [&](int segment, int worker) {
      lane const one = out.lane_of(segment);
      detail::lane_spans(exec, from, own, {rows, spans, how.chunks}, how, out, one, exec.scratch(worker))
          .compute(out.row(segment));
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
