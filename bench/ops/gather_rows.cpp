// SPDX-License-Identifier: Apache-2.0
// gather_rows in place, rows of 256 bytes in any number of arrays, against a memcpy of the bytes that are kept.
#include <kvpolicy/ops/gather_rows.hpp>

#include "checks.hpp"
#include "measure.hpp"

namespace {

namespace kv = kvpolicy;

std::span<kv::recorded_column const> const no_columns{};

/// A decision at random: one of `one_in` entries stays.
class decided {
 public:
  decided(kv::host_executor& exec, kv::cache const& in, int one_in)
      : policy_{.score = kv::random_scores{}, .budget = kv::per_lane{in.lanes.capacity / one_in}},
        held_(kv::make_state(exec, policy_, in)),
        plan_(kv::make_plan(exec, policy_, in)) {
    kv::decide(exec, policy_, kv::signals{in.lanes}, held_, plan_);
  }
  [[nodiscard]] kv::keep_set const& keep() const { return plan_.keep(); }

 private:
  kv::eviction<kv::random_scores> policy_;
  kv::state<kv::host_executor> held_;
  kv::plan<kv::host_executor> plan_;
};

/// True if the rows of a lane, in every array, are the kept ones of what was there.
bool gathers(kv::host_executor& exec, kv::keep_set const& keep, kv::cache const& cache) {
  auto const row = static_cast<std::size_t>(cache.k.token_stride);
  auto const n = static_cast<std::size_t>(cache.lanes.capacity);
  std::vector<kv::plane> planes{cache.k, cache.v};
  planes.insert(planes.end(), cache.more.begin(), cache.more.end());
  std::vector<kv::lane> const some{cache.lanes.at(0), cache.lanes.at(cache.lanes.size() - 1)};
  std::vector<std::vector<std::byte>> before;
  for (kv::lane const& this_lane : some) {
    for (kv::plane const& each : planes) {
      std::byte const* const first = each.row(this_lane.layer, {}, this_lane.head);
      before.emplace_back(first, first + n * row);
    }
  }
  kv::ops::gather_rows(exec, keep, cache, no_columns);
  std::size_t next = 0;
  for (kv::lane const& this_lane : some) {
    auto const kept = keep.listed(cache.lanes.index(this_lane));
    for (kv::plane const& each : planes) {
      std::vector<std::byte> const& was = before[next++];
      for (std::size_t i = 0; i < kept.size(); ++i) {
        std::byte const* const is = each.row(this_lane.layer, {0, static_cast<int>(i)}, this_lane.head);
        if (std::memcmp(is, was.data() + static_cast<std::size_t>(kept[i]) * row, row) != 0) return false;
      }
    }
  }
  return true;
}

void run(benchmark::State& state, int entries, int arrays, int one_in, int threads) {
  if (!bench::has_memory(
          state, bench::model_cache::bytes(bench::whole_model, entries, kv::codec::f16, arrays) * (1.0 + 2.0 / one_in)))
    return;
  bench::model_cache model(bench::whole_model, entries, kv::codec::f16, arrays);
  kv::cache const cache = model.view();
  kv::host_executor exec(threads);
  decided const by(exec, cache, one_in);
  if (!gathers(exec, by.keep(), cache)) return state.SkipWithError("wrong result");
  std::size_t const kept = model.plane_bytes() / static_cast<std::size_t>(one_in) * static_cast<std::size_t>(arrays);
  bench::memory const from(kept), to(kept);
  std::memset(from.data(), 1, kept);
  std::memset(to.data(), 2, kept);
  auto const taken = bench::in_turn_after(
      state, [&] { model.reset(); }, [&] { kv::ops::gather_rows(exec, by.keep(), cache, no_columns); },
      [&] { bench::floors::copy_pass(exec, to.data(), from.data(), kept); });
  state.counters["over_memcpy"] = taken.ratio(0, 1);
  bench::report_rate(state, static_cast<double>(kept), taken.seconds(0), threads);
}

void gather_rows(benchmark::State& state) {
  auto const arg = [&](int i) { return static_cast<int>(state.range(static_cast<std::size_t>(i))); };
  run(state, arg(0), arg(1), arg(2), arg(3));
}
BENCHMARK(gather_rows)
    ->ArgNames({"entries", "arrays", "one_in", "threads"})
    ->ArgsProduct({{4096, 32768, 131072}, {2}, {2, 4}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(gather_rows)
    ->Name("report/gather_rows")
    ->ArgNames({"entries", "arrays", "one_in", "threads"})
    ->ArgsProduct({{8192}, {2, 3, 4}, {4}, {1, 2}})
    ->ArgsProduct({{8192}, {2}, {2}, {1, 2}})
    ->Iterations(15)
    ->UseManualTime();

/// What the second thread gains gather_rows, of what it gains a copy of the kept bytes.
void report_threads(benchmark::State& state) {
  if (!bench::has_memory(state, bench::model_cache::bytes(bench::whole_model, 8192, kv::codec::f16) * 1.5)) return;
  bench::model_cache model(bench::whole_model, 8192, kv::codec::f16);
  kv::cache const cache = model.view();
  kv::host_executor one(1), two(2);
  decided const by(two, cache, 4);
  if (!gathers(two, by.keep(), cache)) return state.SkipWithError("wrong result");
  std::size_t const kept = model.plane_bytes() / 2;
  bench::memory const from(kept), to(kept);
  std::memset(from.data(), 1, kept);
  std::memset(to.data(), 2, kept);
  auto const copy = [&](kv::host_executor& exec) { bench::floors::copy_pass(exec, to.data(), from.data(), kept); };
  auto const taken = bench::in_turn_after(
      state, [&] { model.reset(); }, [&] { kv::ops::gather_rows(one, by.keep(), cache, no_columns); },
      [&] { kv::ops::gather_rows(two, by.keep(), cache, no_columns); }, [&] { copy(one); }, [&] { copy(two); });
  state.counters["share"] = taken.share(0, 1, 2, 3);
  state.counters["gain"] = taken.ratio(0, 1);
  state.counters["floor_gain"] = taken.ratio(2, 3);
}
BENCHMARK(report_threads)->Name("report/threads/gather_rows")->Iterations(15)->UseManualTime();

}  // namespace
