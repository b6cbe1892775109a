// SPDX-License-Identifier: Apache-2.0
// Random eviction on a whole model's lanes.
#include "policies/decide_apply.hpp"

namespace {

/// The published generator, SplitMix64, written out again.
std::uint64_t split_mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

void random(benchmark::State& state) {
  bench::whole_model_run(
      state, [](int budget) { return kvpolicy::policies::random({.budget = budget}); }, {},
      [](auto const& cache, auto const&, kvpolicy::lane this_lane) {
        bench::reference::row scores;
        for (int e = 0; e < cache.lanes.committed(this_lane); ++e) {
          std::uint64_t x = split_mix(42);
          for (int const part : {this_lane.sequence, this_lane.layer, this_lane.head, e})
            x = split_mix(x ^ static_cast<std::uint64_t>(part));
          scores.push_back(static_cast<double>(x >> 40));
        }
        return bench::judged{scores, bench::nothing_forced(scores.size())};
      });
}
BENCHMARK(random)->Apply(bench::whole_model_axes);

}  // namespace
