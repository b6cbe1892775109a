// SPDX-License-Identifier: Apache-2.0
// span_attention of a chunk and as many rows as it has entries, against logits of the same rows and entries.
#include <kvpolicy/ops/logits.hpp>
#include <kvpolicy/ops/span_attention.hpp>

#include "measure.hpp"
#include "model.hpp"

namespace {

namespace kv = kvpolicy;

/// The share of the products that logits makes too is 1, or 2/3 with keys of the rows' own.
void span_attention(benchmark::State& state) {
  auto const entries = static_cast<int>(state.range(0));
  auto const element = static_cast<kv::codec>(state.range(1));
  bool const own = state.range(3) != 0;
  kv::host_executor exec(static_cast<int>(state.range(2)));
  bench::model_cache model(bench::one_layer, entries, element), repeated(bench::one_layer, entries, element);
  bench::model_queries const queries(bench::one_layer, entries, entries, element);
  kv::cache const cache = model.view();
  kv::query_view const rows = queries.view(false);
  exec.reserve(kv::implementation<kv::ops::logits_t, kv::host>::scratch(bench::one_layer, entries));
  exec.reserve(kv::implementation<kv::ops::span_attention_t, kv::host>::scratch(bench::one_layer, entries));
  state.SetLabel(kv::name_of(element));
  kv::plane const k = repeated.view().k;
  kv::row_spans spans;
  if (own) {
    spans.keys = {.base = k.base, .element = element, .dims = k.channels, .layer = k.layer_stride};
    spans.keys.head = k.head_stride, spans.keys.row = k.token_stride;
    spans.keys.heads = cache.lanes.heads, spans.keys.rows = entries;
  }
  std::vector<float> values(static_cast<std::size_t>(cache.lanes.size() * entries)), most(values.size());
  auto const to = kv::contiguous_scores(cache.lanes, kv::granularity::lane, values.data(), entries);
  auto const peer = kv::contiguous_scores(cache.lanes, kv::granularity::lane, most.data(), entries);
  auto const run = [&] { kv::ops::span_attention(exec, kv::keys_of(cache), rows, spans, {.sinks = 4}, to); };
  run();
  kv::logits_options const maxima{.rows = kv::reduction::max, .group = kv::reduction::max};
  auto const taken = bench::in_turn(
      state, run, [&] { kv::ops::logits(exec, kv::keys_of(cache), rows, maxima, kv::replaced{}, peer); });
  state.counters["over_logits"] = taken.ratio(0, 1);
  state.counters["verb_us"] = 1e6 * taken.least(0);
}
BENCHMARK(span_attention)
    ->ArgNames({"entries", "element", "threads", "own"})
    ->ArgsProduct({{1024}, {0, 1, 2}, {1, 2}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
