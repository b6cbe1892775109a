// top_k against std::nth_element on the same scores, a quarter kept; inputs rotate so that no branch is learnt.
#include "defaults.hpp"

namespace {

struct lanes_of_scores {
  lanes_of_scores(int lanes, int entries)
      : count(static_cast<std::size_t>(lanes), entries),
        position(static_cast<std::size_t>(entries)),
        scores(static_cast<std::size_t>(lanes) * static_cast<std::size_t>(entries)) {
    bench::fill_scores(scores, 7);
    who = {.layer_end = 1,
           .heads = lanes,
           .bound = entries,
           .count = {count.data(), 0, 0, 1},
           .position = {position.data()}};
  }
  std::vector<int> count, position;
  std::vector<float> scores;
  kvpolicy::lanes who;
};

bool matches_sort(kvpolicy::keep_set const& keep, lanes_of_scores const& data, int entries, int k) {
  std::vector<int> order(static_cast<std::size_t>(entries));
  for (int e = 0; e < entries; ++e) order[static_cast<std::size_t>(e)] = e;
  auto const score = [&](int e) { return data.scores[static_cast<std::size_t>(e)]; };
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return score(a) > score(b) || (score(a) == score(b) && a < b); });
  order.resize(static_cast<std::size_t>(k));
  std::sort(order.begin(), order.end());
  auto const first = keep.listed(0);
  return std::equal(first.begin(), first.end(), order.begin(), order.end());
}

void top_k(benchmark::State& state) {
  int const lanes = static_cast<int>(state.range(0));
  int const entries = static_cast<int>(state.range(1));
  lanes_of_scores data(lanes, entries);
  kvpolicy::host_executor exec(static_cast<int>(state.range(2)));
  exec.reserve(kvpolicy::implementation<kvpolicy::ops::top_k_t, kvpolicy::host>::scratch({}, entries));
  kvpolicy::plan<kvpolicy::host_executor> plan(exec, data.who, kvpolicy::granularity::lane);
  auto const scores = kvpolicy::contiguous_scores(data.who, kvpolicy::granularity::lane, data.scores.data(), entries);
  auto const keep = plan.room(data.who);
  kvpolicy::ops::top_k(exec, scores, kvpolicy::best{entries / 4}, keep);
  if (!matches_sort(keep, data, entries, entries / 4)) return state.SkipWithError("wrong result");
  for (auto _ : state) kvpolicy::ops::top_k(exec, scores, kvpolicy::best{entries / 4}, keep);
  bench::report_bytes(state, data.scores.size() * sizeof(float));
}
BENCHMARK(top_k)
    ->ArgNames({"lanes", "entries", "threads"})
    ->ArgsProduct({{8, 288}, {4096, 32768}, {1, 2}})
    ->UseRealTime();

void nth_element(benchmark::State& state) {
  int const lanes = static_cast<int>(state.range(0));
  int const entries = static_cast<int>(state.range(1));
  lanes_of_scores data(lanes, entries);
  std::vector<float> row(static_cast<std::size_t>(entries));
  for (auto _ : state) {
    for (int lane = 0; lane < lanes; ++lane) {
      std::copy_n(data.scores.begin() + static_cast<std::ptrdiff_t>(lane) * entries, entries, row.begin());
      std::nth_element(row.begin(), row.begin() + entries / 4, row.end(), std::greater<>{});
      benchmark::DoNotOptimize(row.data());
    }
  }
  bench::report_bytes(state, data.scores.size() * sizeof(float));
}
BENCHMARK(nth_element)->ArgNames({"lanes", "entries"})->ArgsProduct({{8, 288}, {4096, 32768}})->UseRealTime();

}  // namespace
