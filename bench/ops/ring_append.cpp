// SPDX-License-Identifier: Apache-2.0
// ring_append: the last query rows of a forward go into the ring. Against a copy of the rows.
#include <kvpolicy/ops/ring_append.hpp>

#include "scored_layer.hpp"

namespace {

void ring_append(benchmark::State& state) {
  int const count = static_cast<int>(state.range(0));
  bench::scored_layer on(4096);
  kvpolicy::query_ring const ring{32};
  auto const policy = kvpolicy::policies::snapkv({.budget = 1024});
  auto held = kvpolicy::make_state(on.exec, policy, on.cache);
  bench::layer_queries const rows(4096, count);
  kvpolicy::signals const in{on.cache.lanes, rows.signal()};
  kvpolicy::observe(on.exec, policy, in, held);
  kvpolicy::recent_queries const seen = ring.view(held.columns_from(0));
  kvpolicy::queries const given = rows.signal();
  for (int r = 0; r < count; ++r) {
    for (int const head : {0, bench::heads * bench::group - 1}) {
      kvpolicy::lane const this_lane{0, 0, head / bench::group};
      std::byte const* const is = seen.at(this_lane, head, seen.stored(this_lane, r));
      if (std::memcmp(is, given.at(this_lane, head, r), sizeof(float) * bench::dims) != 0)
        return state.SkipWithError("wrong result");
    }
  }
  for (auto _ : state) kvpolicy::observe(on.exec, policy, in, held);
  bench::report_bytes(state, rows.values.size() * sizeof(float));
}
BENCHMARK(ring_append)->ArgNames({"rows"})->Arg(1)->Arg(32)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
