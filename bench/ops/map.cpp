// SPDX-License-Identifier: Apache-2.0
// map: a number for every entry, here a random one. Against a copy of the scores.
#include <kvpolicy/ops/map.hpp>

#include "scored_layer.hpp"

namespace {

void map(benchmark::State& state) {
  bench::scored_layer on(static_cast<int>(state.range(0)));
  kvpolicy::random_scores::uniform const by{42};
  kvpolicy::ops::map(on.exec, on.scores, by);
  for (int const head : {0, bench::heads - 1}) {
    for (int e = 0; e < on.layer.bound; ++e) {
      kvpolicy::entry const at{{0, 0, head}, e, on.layer.bound, e, 0};
      if (on.scores.row(head)[e] != by(0, at)) return state.SkipWithError("wrong result");
    }
  }
  for (auto _ : state) kvpolicy::ops::map(on.exec, on.scores, by);
  bench::report_bytes(state, on.values.size() * sizeof(float));
}
BENCHMARK(map)->ArgNames({"entries"})->Arg(4096)->Arg(32768)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
