// SPDX-License-Identifier: Apache-2.0
// select_if over a whole model's scores: entries that score enough, and a few forced ones. Against std::copy_if over
// the ordinals, and a read of the scores.
#include <kvpolicy/ops/select_if.hpp>
#include <numeric>

#include "measure.hpp"
#include "model.hpp"

namespace {

namespace kv = kvpolicy;

constexpr int lanes = 36 * 8;

/// As a gate's threshold with a sink of 4 and the newest 32.
struct enough {
  float least;
  [[nodiscard]] bool picks(float score) const { return score >= least; }
  [[nodiscard]] bool forces(kv::entry const& e) const { return e.ordinal < 4 || e.ordinal >= e.count - 32; }
};

/// `sets` of scores, used in turn, so that they come from memory.
struct selected {
  explicit selected(int entries)
      : width(static_cast<std::size_t>(entries)),
        sets(bench::memory_bound_bytes() / (4 * lanes * width) + 1),
        scores(sets * 4 * lanes * width),
        count(lanes, entries),
        every(width),
        ordinal(lanes * width),
        offset(lanes + 1),
        seen(lanes) {
    bench::noise from(7);
    for (std::size_t i = 0; i < sets * lanes * width; ++i) scores.as<float>()[i] = from.uniform();
    std::iota(every.begin(), every.end(), 0);
  }
  [[nodiscard]] kv::lanes who() {
    return {.layer_end = 36,
            .heads = 8,
            .capacity = static_cast<int>(width),
            .count = {count.data(), 0, 8, 1},
            .position = {every.data()}};
  }
  [[nodiscard]] kv::score_view view() {
    return kv::contiguous_scores(who(), kv::granularity::lane, now, who().capacity);
  }
  [[nodiscard]] kv::keep_set keep() {
    return {.lanes = who(),
            .indptr = offset.data(),
            .indices = ordinal.data(),
            .entry_count = seen.data(),
            .capacity = static_cast<std::int64_t>(ordinal.size()),
            .report = &told};
  }
  void next() { now = scores.as<float>() + (at++ % sets) * lanes * width; }

  std::size_t width, sets;
  bench::memory scores;
  std::vector<int> count, every, ordinal;
  std::vector<std::int64_t> offset;
  std::vector<int> seen;
  kv::report told;
  float* now = nullptr;
  std::size_t at = 0;
};

/// What a lane's rule picks, into `to`; returns how many.
std::ptrdiff_t plain_select(selected const& on, enough const& rule, int lane, int* to) {
  float const* const score = on.now + static_cast<std::size_t>(lane) * on.width;
  int const count = on.count[static_cast<std::size_t>(lane)];
  int* const end = std::copy_if(on.every.data(), on.every.data() + count, to,
                                [&](int e) { return e < 4 || e >= count - 32 || rule.picks(score[e]); });
  return end - to;
}

bool is_selected(selected& on, enough const& rule) {
  std::vector<int> expected(on.width);
  for (int i = 0; i < lanes; ++i) {
    auto const listed = on.keep().listed(i);
    if (std::ssize(listed) != plain_select(on, rule, i, expected.data())) return false;
    if (!std::equal(listed.begin(), listed.end(), expected.begin())) return false;
  }
  return true;
}

void select_if(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0)), threads = static_cast<int>(state.range(2));
  if (!bench::has_memory(state, 16.0 * lanes * entries + static_cast<double>(bench::memory_bound_bytes()))) return;
  selected on(entries);
  enough const rule{1.0f - static_cast<float>(state.range(1)) / 100};
  kv::host_executor exec(threads);
  on.next();
  kv::ops::select_if(exec, on.view(), rule, on.keep());
  if (!is_selected(on, rule)) return state.SkipWithError("wrong result");
  std::vector<int> apart(lanes * on.width);  // each lane's picks, not moved together
  auto const plain = [&] {
    exec.for_each(lanes, [&](int i, int) {
      benchmark::DoNotOptimize(plain_select(on, rule, i, apart.data() + static_cast<std::size_t>(i) * on.width));
    });
  };
  std::size_t const bytes = 4 * lanes * on.width;
  bench::rounds const taken = bench::in_turn_after(
      state, [&] { on.next(); }, [&] { kv::ops::select_if(exec, on.view(), rule, on.keep()); }, plain,
      [&] { bench::floors::read_pass(exec, reinterpret_cast<std::byte*>(on.now), bytes); },
      [&] {
        bench::floors::touch_pass(exec, {{bench::floors::touching::read, on.now, bytes},
                                         {bench::floors::touching::write, on.ordinal.data(),
                                          4 * static_cast<std::size_t>(on.offset.back())}});
      });
  bench::report_share(state, taken, 0, 3);
  state.counters["over_copy_if"] = taken.ratio(0, 1);
  state.counters["over_read"] = taken.ratio(0, 2);
  bench::report_rate(state, static_cast<double>(bytes), taken.seconds(0), threads);
}
BENCHMARK(select_if)
    ->ArgNames({"entries", "percent", "threads"})
    ->ArgsProduct({{4096, 32768}, {10, 50}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(20);

}  // namespace
