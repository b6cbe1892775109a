// SPDX-License-Identifier: Apache-2.0
// What type erasure adds to a decision: the typed policy and the same one from a spec, on one small lane.
#include <array>
#include <vector>

#include "../defaults.hpp"
#include "../measure.hpp"

namespace {

namespace kv = kvpolicy;

template <class Policy>
void decide(benchmark::State& state, Policy const& policy) {
  bench::layer_cache layer(static_cast<int>(state.range(0)));
  kv::cache cache = layer.view();
  kv::host_executor exec(1);
  auto held = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  kv::signals const in{cache.lanes, kv::keys_of(cache), kv::values_of(cache)};
  for (auto _ : state) {
    kv::observe(exec, policy, in, held);
    kv::decide(exec, policy, in, held, plan);
  }
  if (plan.keep().listed(0).size() != 4) state.SkipWithError("wrong result");
}

void typed(benchmark::State& state) {
  decide(state, kv::eviction{.score = kv::random_scores{}, .protect = kv::sinks{1}, .budget = kv::per_lane{4}});
}
void erased(benchmark::State& state) { decide(state, kv::parse("random | sinks(1) | budget(4)")); }

/// Where prompts end, and the classes of tokens, of one sequence.
std::array<int, 1> const prompt_end{24};
std::vector<int> const token_class = [] {
  std::vector<int> made(4096);
  for (std::size_t p = 0; p < made.size(); ++p) made[p] = p % 128 == 5 ? 1 : 0;
  return made;
}();
kv::registry with_tables() {
  kv::registry known = kv::shipped();
  known.table("prompt_end", kv::by_lane<int const>{prompt_end.data()});
  known.table("token_class", kv::by_lane<int const>{token_class.data()});
  return known;
}

/// Both in turn, so that the ratio is of one run.
template <class Policy>
void both_in_turn(benchmark::State& state, Policy const& plain) {
  bench::layer_cache layer(static_cast<int>(state.range(0)));
  kv::cache cache = layer.view();
  kv::host_executor exec(1);
  kv::any_policy const by_name = kv::parse(kv::to_string(plain), with_tables());
  auto held = kv::make_state(exec, plain, cache);
  auto plan = kv::make_plan(exec, plain, cache);
  kv::signals const in{cache.lanes, kv::keys_of(cache), kv::values_of(cache)};
  using clock = std::chrono::steady_clock;
  clock::duration typed_time{}, erased_time{}, typed_decision{}, erased_decision{};
  auto const step = [&](auto const& policy, clock::duration& whole, clock::duration& decision) {
    auto const begin = clock::now();
    kv::observe(exec, policy, in, held);
    auto const middle = clock::now();
    kv::decide(exec, policy, in, held, plan);
    auto const end = clock::now();
    whole += end - begin;
    decision += end - middle;
  };
  for (auto _ : state) {
    step(plain, typed_time, typed_decision);
    step(by_name, erased_time, erased_decision);
  }
  auto const added_ns = [&](clock::duration erased, clock::duration typed) {
    return std::chrono::duration<double, std::nano>(erased - typed).count() / static_cast<double>(state.iterations());
  };
  auto const ratio = [](clock::duration erased, clock::duration typed) {
    return static_cast<double>(erased.count()) / static_cast<double>(typed.count());
  };
  state.SetLabel(kv::to_string(plain));
  state.counters["ratio"] = ratio(erased_time, typed_time);
  state.counters["added_ns"] = added_ns(erased_time, typed_time);
  state.counters["decide_ratio"] = ratio(erased_decision, typed_decision);
  state.counters["decide_added_ns"] = added_ns(erased_decision, typed_decision);
  // As with floors, a typed decision below 20 us counts as 20 us: to add 1 us is then to take 1.05 times as long.
  double const typed_ns = std::max(added_ns(typed_decision, {}), 1e9 * bench::least_floor);
  state.counters["over_typed"] = 1 + added_ns(erased_decision, typed_decision) / typed_ns;
}

template <class Protect>
void protected_by(benchmark::State& state, Protect const& protect) {
  both_in_turn(state, kv::eviction{.score = kv::random_scores{}, .protect = protect, .budget = kv::per_lane{64}});
}
void sinks_over_typed(benchmark::State& state) { protected_by(state, kv::sinks{1}); }
void recent_over_typed(benchmark::State& state) { protected_by(state, kv::recent{8}); }
void safe_over_typed(benchmark::State& state) { protected_by(state, kv::safe{4, 8}); }
void span_over_typed(benchmark::State& state) { protected_by(state, kv::sinks{4} | kv::position_span{8, 12}); }

void prompt_over_typed(benchmark::State& state) { protected_by(state, kv::prompt{{prompt_end.data()}}); }
void marks_over_typed(benchmark::State& state) { protected_by(state, kv::marks{1, {token_class.data()}}); }
void two_spans_over_typed(benchmark::State& state) {
  protected_by(state, kv::sinks{4} | kv::position_span{8, 12} | kv::position_span{20, 30});
}

BENCHMARK(typed)->ArgName("entries")->Arg(16)->Arg(4096);
BENCHMARK(erased)->ArgName("entries")->Arg(16)->Arg(4096);
BENCHMARK(sinks_over_typed)->ArgName("entries")->Arg(128)->Arg(4096);
BENCHMARK(recent_over_typed)->ArgName("entries")->Arg(128)->Arg(4096);
BENCHMARK(safe_over_typed)->ArgName("entries")->Arg(128)->Arg(4096);
BENCHMARK(span_over_typed)->ArgName("entries")->Arg(128)->Arg(4096);
BENCHMARK(two_spans_over_typed)->ArgName("entries")->Arg(128)->Arg(4096);
BENCHMARK(prompt_over_typed)->ArgName("entries")->Arg(128)->Arg(4096);
BENCHMARK(marks_over_typed)->ArgName("entries")->Arg(128)->Arg(4096);

}  // namespace
