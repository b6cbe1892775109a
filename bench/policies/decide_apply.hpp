// SPDX-License-Identifier: Apache-2.0
// Benchmarks a decision and its compaction, for all lanes of a model or of one layer. All policies use it.
#pragma once

#include <vector>

#include "checks.hpp"
#include "measure.hpp"

namespace bench {

/// The reference's scores of a segment, and its forced entries.
struct judged {
  reference::row scores;
  reference::flags forced;
};

/// How a policy is run: how many query rows it gets, whether it reads keys, and whether it observes every forward pass.
struct conduct {
  int rows = 1;
  bool reads_keys = false;
  bool observes = false;
};

/// A cache, its query rows, and a policy's state and plan.
template <class Policy>
class run_of {
 public:
  run_of(kv::shape const& model, int entries, kv::codec element, Policy const& policy, conduct how, int threads)
      : policy_(policy),
        how_(how),
        exec_(threads),
        model_(model, entries, element),
        queries_(model, entries, how.rows, element),
        cache_(model_.view()),
        held_(kv::make_state(exec_, policy_, cache_)),
        plan_(kv::make_plan(exec_, policy_, cache_)) {}

  void reset() { model_.reset(); }

  void decide() {
    kv::signals const in{cache_.lanes, kv::keys_of(cache_), kv::values_of(cache_), queries_.signal(),
                         queries_.recent()};
    if (how_.observes) kv::observe(exec_, policy_, in, held_);
    kv::decide(exec_, policy_, in, held_, plan_);
  }
  void apply() { kv::apply(exec_, kv::compact{}, plan_, cache_, held_); }

  /// Decides once, and compares the first and the last segment with `expected(lane of the cache)`. Then it applies, and
  /// checks the counts.
  template <class Expected>
  [[nodiscard]] bool is_right(int budget, Expected const& expected) {
    decide();
    kv::keep_set const& keep = plan_.keep();
    for (int const segment : {0, keep.segments() - 1}) {
      kv::lane const this_lane = keep.lanes.at(kv::first_lane(keep.lanes, keep.decides, segment));
      judged const by = expected(cache_, queries_.view(), this_lane);
      if (!keeps_best(keep.listed(segment), by.scores, by.forced, budget, slack(by.scores))) return false;
    }
    apply();
    for (int lane = 0; lane < cache_.lanes.size(); ++lane) {
      if (model_.count(lane) != budget) return false;
    }
    return true;
  }

  /// Bytes that must be touched: the keys, if they are read, and the kept rows of keys and values.
  [[nodiscard]] double bytes(int one_in) const {
    return static_cast<double>(model_.plane_bytes()) * ((how_.reads_keys ? 1.0 : 0.0) + 2.0 / one_in);
  }
  [[nodiscard]] kv::host_executor& exec() { return exec_; }
  [[nodiscard]] kv::cache const& cache() const { return cache_; }
  [[nodiscard]] Policy const& policy() const { return policy_; }

 private:
  [[nodiscard]] double slack(reference::row const& scores) const {
    double highest = 0;
    for (double const one : scores) highest = std::max(highest, std::abs(one));
    return 2 * tolerance(model_.element()) * highest;
  }

  Policy policy_;
  conduct how_;
  kv::host_executor exec_;
  model_cache model_;
  model_queries queries_;
  kv::cache cache_;
  kv::state<kv::host_executor> held_;
  kv::plan<kv::host_executor> plan_;
};

/// Times decide + apply (0), decide alone (1), and the further operations. The cache is restored before each.
template <class Run, class... More>
rounds decide_and_apply(benchmark::State& state, Run& run, More const&... more) {
  return in_turn_after(
      state, [&] { run.reset(); },
      [&] {
        run.decide();
        run.apply();
      },
      [&] { run.decide(); }, more...);
}

/// Times decide + apply for all 288 lanes of a model, of which a quarter of the entries is kept. Axes: entries,
/// element, threads.
template <class Make, class Expected>
void whole_model_run(benchmark::State& state, Make const& make, conduct how, Expected const& expected) {
  int const entries = static_cast<int>(state.range(0));
  auto const element = static_cast<kv::codec>(state.range(1));
  int const threads = static_cast<int>(state.range(2));
  if (!has_memory(state, model_cache::bytes(whole_model, entries, element) + 8.0 * 288 * entries)) return;
  run_of run(whole_model, entries, element, make(entries / 4), how, threads);
  if (!run.is_right(entries / 4, expected)) return state.SkipWithError("wrong result");
  auto const taken = decide_and_apply(state, run);
  state.SetLabel(kv::name_of(element));
  state.counters["decide_ms"] = 1e3 * taken.seconds(1);
  report_rate(state, run.bytes(4), taken.seconds(0), threads);
}

/// The axes of every policy: 4k to 128k entries in f32, f16 and bf16. A size that does not fit into memory is reported.
inline void whole_model_axes(benchmark::internal::Benchmark* to) {
  to->ArgNames({"entries", "element", "threads"})
      ->ArgsProduct({{4096, 16384, 32768, 65536, 131072}, {0, 1, 2}, {2}})
      ->ArgsProduct({{4096}, {1}, {1}})
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

/// Flags of `count` entries, none of which is forced.
inline reference::flags nothing_forced(std::size_t count) { return reference::flags(count, false); }

}  // namespace bench
