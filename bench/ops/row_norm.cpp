// SPDX-License-Identifier: Apache-2.0
// row_norm: the norm of every key, of a whole model. Against a read of the keys.
#include <kvpolicy/ops/row_norm.hpp>

#include "checks.hpp"
#include "measure.hpp"

namespace {

namespace kv = kvpolicy;

void row_norm(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0));
  auto const element = static_cast<kv::codec>(state.range(1));
  int const threads = static_cast<int>(state.range(2));
  if (!bench::has_memory(state, bench::model_cache::bytes(bench::whole_model, entries, element) + 4.0 * 288 * entries))
    return;
  bench::model_cache model(bench::whole_model, entries, element);
  kv::cache const cache = model.view();
  kv::host_executor exec(threads);
  std::vector<float> values(static_cast<std::size_t>(cache.lanes.size()) * static_cast<std::size_t>(entries));
  auto const scores = kv::contiguous_scores(cache.lanes, kv::granularity::lane, values.data(), entries);
  auto const run = [&] { kv::ops::row_norm(exec, kv::keys_of(cache), kv::negated{}, scores); };
  run();
  for (int const lane : {0, cache.lanes.size() - 1}) {
    kv::lane const this_lane = cache.lanes.at(lane);
    auto const keys =
        bench::decoded_rows(element, cache.k.row(this_lane.layer, {}, this_lane.head), entries, cache.k.channels);
    auto const expected = bench::reference::knorm_scores(keys);
    if (!bench::close({scores.row(lane), expected.size()}, expected, 1e-5)) return state.SkipWithError("wrong result");
  }
  auto const taken =
      bench::in_turn(state, run, [&] { bench::floors::read_pass(exec, model.keys().data(), model.plane_bytes()); });
  bench::report_share(state, taken, 0, 1);
  state.SetLabel(kv::name_of(element));
  state.counters["over_read"] = taken.ratio(0, 1);
  bench::report_rate(state, static_cast<double>(model.plane_bytes()), taken.seconds(0), threads);
}
BENCHMARK(row_norm)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{4096, 32768}, {0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
