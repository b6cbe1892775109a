// SPDX-License-Identifier: Apache-2.0
// The steady state of a decode loop: one token is appended, observed, decided about and dropped in each step, for all
// lanes of a model. Beside it, in the same run, its floor: plain loops over the columns that the rule needs, on the
// same threads. A floor below 20 us counts as 20 us.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "decode_model.hpp"

namespace {

namespace kv = kvpolicy;
using bench::decode_model, bench::read_rows, bench::timed_steps;

/// One policy that drops an entry in each step. `extra` gives further signals, and `floor` reads the columns.
template <class Policy, class Extra, class Floor>
void drop_one(benchmark::State& state, Policy const& policy, Extra const& extra, Floor const& floor) {
  int const budget = static_cast<int>(state.range(0));
  auto const element = static_cast<kv::codec>(state.range(1));
  decode_model model(budget, 1, element, true, true);
  kv::host_executor exec(static_cast<int>(state.range(2)));
  kv::cache cache = model.view();
  kv::overwrite const how{model.table(model.list)};
  auto held = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, how);
  // Scores of the engine's attention begin with the answer: rows for each token of a long prompt take minutes to read.
  using score_type = std::remove_cvref_t<decltype(policy.score)>;
  constexpr bool skips_prompt = std::is_same_v<score_type, kv::h2o> || std::is_same_v<score_type, kv::tova>;
  int position = 0;
  timed_steps taken;
  auto const step = [&] {
    model.write(cache, position < budget);
    taken.time(0, [&] { kv::append(exec, cache, held, {.tokens = 1, .position = position}); });
    if (position < budget && skips_prompt) return void(++position);
    extra(cache, position, [&](auto const&... more) {
      kv::signals const in{cache.lanes, kv::keys_of(cache), more...};
      taken.time(1, [&] { kv::observe(exec, policy, in, held); });
      taken.time(2, [&] { kv::decide(exec, policy, in, held, plan); });
    });
    taken.time(3, [&] { kv::apply(exec, how, plan, cache, held); });
    ++position;
  };
  while (position < budget + (skips_prompt ? 8 : 200)) step();
  if (*cache.lanes.count.row({}) != budget) return state.SkipWithError("wrong result");
  taken = {};
  for (auto _ : state) {
    step();
    double const seconds = taken.last_step();
    model.write(cache);  // as before a step
    taken.floor(bench::seconds_of([&] { floor(exec, model, held, budget); }));
    state.SetIterationTime(seconds);
  }
  taken.report(state, 1);
  state.SetLabel(kv::name_of(element));
}

auto const nothing_more = [](kv::cache const&, int, auto const& with) { with(); };

void streaming_llm(benchmark::State& state) {
  drop_one(state, kv::policies::streaming_llm_decode({.budget = static_cast<int>(state.range(0))}), nothing_more,
           [](auto&&...) {});
}

void recorded_knorm(benchmark::State& state) {
  drop_one(state, kv::policies::knorm_decode({.budget = static_cast<int>(state.range(0))}), nothing_more,
           [](kv::host_executor& exec, decode_model& model, auto const& held, int budget) {
             model.read_next_keys(exec, budget);
             read_rows(exec, held.columns()[0].rows.data, held.columns()[0].rows.head, budget);
           });
}

/// The rule reads a number of the gate and the position of each entry.
void trim_kv(benchmark::State& state) {
  std::vector<float> log_beta(decode_model::lanes());
  bench::noise random(3);
  drop_one(
      state, kv::policies::trim_kv_decode({.budget = static_cast<int>(state.range(0))}),
      [&](kv::cache const& cache, int, auto const& with) {
        for (float& each : log_beta) each = -0.01f * random.uniform() - 1e-6f;
        kv::log_beta born;
        born.base = reinterpret_cast<std::byte const*>(log_beta.data());
        born.element = kv::codec::f32;
        born.sequence = 0;
        born.layer = 4LL * cache.lanes.heads;
        born.head = 4;
        born.entry = 4;
        born.entries = 1;
        with(born);
      },
      [](kv::host_executor& exec, decode_model& model, auto const& held, int budget) {
        read_rows(exec, held.columns()[0].rows.data, held.columns()[0].rows.head, budget);
        read_rows(exec, reinterpret_cast<std::byte const*>(model.position.data()), 4LL * model.bound, budget);
      });
}

/// The engine gives the probabilities of its softmax: they are read, and the mass of each entry is read and written.
void h2o(benchmark::State& state) {
  int const budget = static_cast<int>(state.range(0));
  bench::memory probabilities(std::size_t{36} * 32 * (static_cast<std::size_t>(budget) + 1) * 4);
  bench::fill_elements(probabilities, kv::codec::f32, 0.5f, 5);
  std::vector<int> newest(1);
  drop_one(
      state, kv::policies::h2o_decode({.budget = budget}),
      [&](kv::cache const& cache, int position, auto const& with) {
        newest[0] = position;
        std::int64_t const row = 4LL * (budget + 1);
        kv::attention_probabilities given{.base = probabilities.data(), .layer = row * 32, .head = row, .row = row};
        given.heads = 32;
        given.rows = 1;
        given.entries = cache.lanes.capacity;
        given.position = {newest.data()};
        with(given);
      },
      [&](kv::host_executor& exec, decode_model& model, auto const& held, int entries) {
        for (int h = 0; h < 4; ++h) {
          read_rows(exec, probabilities.data() + std::int64_t{h} * 288 * 4 * (budget + 1), 4LL * (budget + 1), entries);
        }
        read_rows(exec, reinterpret_cast<std::byte const*>(model.position.data()), 4LL * model.bound, entries);
        exec.for_each(288, [&](int i, int) {
          auto* const mass = reinterpret_cast<float*>(held.columns()[0].rows.data + i * held.columns()[0].rows.head);
          for (int e = 0; e < entries; ++e) mass[e] += 1e-9f;
        });
      });
}

void random(benchmark::State& state) {
  kv::eviction const policy{
      .score = kv::random_scores{}, .budget = kv::per_lane{static_cast<int>(state.range(0))}, .pick = kv::lowest_one{}};
  drop_one(state, policy, nothing_more, [](kv::host_executor& exec, decode_model& model, auto&&, int budget) {
    read_rows(exec, reinterpret_cast<std::byte const*>(model.position.data()), 4LL * model.bound, budget);
  });
}

/// The newest query row is asked about every key.
void tova(benchmark::State& state) {
  int const budget = static_cast<int>(state.range(0));
  auto const element = static_cast<kv::codec>(state.range(1));
  if (!bench::has_memory(state, 288.0 * budget * 2 * 128 * kv::bytes_of(element))) return;
  bench::memory rows(std::size_t{36} * 32 * 128 * static_cast<std::size_t>(kv::bytes_of(element)));
  bench::fill_elements(rows, element, 2, 11);
  kv::eviction const policy{.score = kv::tova{}, .budget = kv::per_lane{budget}, .pick = kv::lowest_one{}};
  drop_one(
      state, policy,
      [&](kv::cache const&, int position, auto const& with) {
        with(kv::queries_of(rows.data(), element, bench::whole_model, 1, &position));
      },
      [](kv::host_executor& exec, decode_model& model, auto&&, int) {
        bench::floors::read_pass(exec, model.k.data(), model.k.size());
      });
}

/// A budget of 32k against one of 1k, in turn.
void streaming_llm_growth(benchmark::State& state) {
  auto const run = [&](int budget, auto const& with) {
    decode_model model(budget, 1, kv::codec::bf16, true, true);
    auto const policy = kv::policies::streaming_llm_decode({.budget = budget});
    kv::host_executor exec(static_cast<int>(state.range(0)));
    kv::cache cache = model.view();
    kv::overwrite const how{model.table(model.list)};
    auto held = kv::make_state(exec, policy, cache);
    auto plan = kv::make_plan(exec, policy, cache, how);
    kv::signals const in{cache.lanes};
    int position = 0;
    auto const step = [&] {
      model.write(cache, position < budget);
      double const seconds = bench::seconds_of([&] {
        kv::append(exec, cache, held, {.tokens = 1, .position = position});
        kv::decide(exec, policy, in, held, plan);
        kv::apply(exec, how, plan, cache, held);
      });
      ++position;
      return seconds;
    };
    while (position < budget + 200) step();
    with(step);
  };
  std::vector<double> small;
  std::vector<double> large;
  run(1024, [&](auto const& short_step) {
    run(32768, [&](auto const& long_step) {
      for (auto _ : state) {
        small.push_back(short_step());
        large.push_back(long_step());
        state.SetIterationTime(large.back());
      }
    });
  });
  state.counters["growth"] =
      *std::min_element(large.begin(), large.end()) / *std::min_element(small.begin(), small.end());
}

/// Contiguous rows: the row of the newest entry is copied into the place of the dropped one. Two rows move a lane.
void streaming_llm_contiguous(benchmark::State& state) {
  int const budget = static_cast<int>(state.range(0));
  decode_model model(budget, 1, static_cast<kv::codec>(state.range(1)), false, true);
  auto const policy = kv::policies::streaming_llm_decode({.budget = budget});
  kv::host_executor exec(static_cast<int>(state.range(2)));
  kv::cache cache = model.view();
  kv::overwrite const how{};
  auto held = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, how);
  kv::signals const in{cache.lanes};
  int position = 0;
  timed_steps taken;
  auto const step = [&] {
    model.write(cache, position < budget);
    taken.time(0, [&] { kv::append(exec, cache, held, {.tokens = 1, .position = position}); });
    taken.time(1, [&] { kv::observe(exec, policy, in, held); });
    taken.time(2, [&] { kv::decide(exec, policy, in, held, plan); });
    taken.time(3, [&] { kv::apply(exec, how, plan, cache, held); });
    ++position;
  };
  while (position < budget + 200) step();
  taken = {};
  for (auto _ : state) {
    step();
    double const seconds = taken.last_step();
    taken.floor(0);
    state.SetIterationTime(seconds);
  }
  taken.report(state, 1);
  state.SetLabel(kv::name_of(model.element));
}

/// `compact` with a slack of 64: rows move once in 64 steps. The floor is a memmove of the rows that move.
void streaming_llm_slack(benchmark::State& state) {
  constexpr int slack = 64;
  int const budget = static_cast<int>(state.range(0));
  auto const element = static_cast<kv::codec>(state.range(1));
  double const bytes = 288.0 * (budget + slack + 1) * 2 * 128 * kv::bytes_of(element);
  if (!bench::has_memory(state, bytes)) return;
  decode_model model(budget, slack + 1, element, false, true);
  kv::eviction const policy{
      .score = kv::streaming_llm{}, .budget = kv::per_lane{budget}, .trigger = kv::over_budget{slack}};
  kv::host_executor exec(static_cast<int>(state.range(2)));
  kv::cache cache = model.view();
  auto held = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, kv::compact{});
  kv::signals const in{cache.lanes};
  int position = 0;
  timed_steps taken;
  auto const cycle = [&] {
    for (int i = 0; i < slack + 1; ++i) {
      model.write(cache);
      taken.time(0, [&] { kv::append(exec, cache, held, {.tokens = 1, .position = position}); });
      taken.time(1, [&] { kv::observe(exec, policy, in, held); });
      bool due = false;
      taken.time(2, [&] {
        due = kv::due(policy, cache);
        if (due) kv::decide(exec, policy, in, held, plan);
      });
      if (due) taken.time(3, [&] { kv::apply(exec, kv::compact{}, plan, cache, held); });
      ++position;
    }
  };
  while (position < budget) {
    int const some = std::min(slack, budget - position);
    kv::append(exec, cache, held, {.tokens = some, .position = position});
    position += some;
  }
  std::memset(model.k.data(), 0, model.k.size());
  std::memset(model.v.data(), 0, model.v.size());
  cycle();
  taken = {};
  auto const floor = [&] {
    std::size_t const row = model.row_bytes();
    exec.for_each(288, [&](int i, int) {
      for (bench::memory const* plane : {&model.k, &model.v}) {
        std::byte* const lane =
            plane->data() + static_cast<std::size_t>(i) * static_cast<std::size_t>(model.bound) * row;
        std::memmove(lane + 4 * row, lane + (4 + slack + 1) * row, static_cast<std::size_t>(budget - 4) * row);
      }
    });
  };
  for (auto _ : state) {
    cycle();
    double const seconds = taken.last_step();
    taken.floor(bench::seconds_of(floor));
    state.SetIterationTime(seconds);
  }
  if (*cache.lanes.count.row({}) != budget) return state.SkipWithError("wrong result");
  taken.report(state, slack + 1);
  state.SetLabel(kv::name_of(element));
}

void axes(benchmark::internal::Benchmark* to) {
  to->ArgNames({"budget", "element", "threads"})
      ->ArgsProduct(
          {{1024, 4096, 32768}, {static_cast<int>(kv::codec::f32), static_cast<int>(kv::codec::bf16)}, {1, 2}})
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}
BENCHMARK(streaming_llm)->Name("report/decode/streaming_llm")->Apply(axes)->Iterations(300);
BENCHMARK(streaming_llm_growth)
    ->Name("report/decode/growth")
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseManualTime()
    ->Iterations(300)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(recorded_knorm)->Name("report/decode/recorded_knorm")->Apply(axes)->Iterations(100);
BENCHMARK(trim_kv)->Name("report/decode/trim_kv")->Apply(axes)->Iterations(100);
BENCHMARK(h2o)->Name("report/decode/h2o")->Apply(axes)->Iterations(60);
BENCHMARK(random)->Name("decode/random")->Apply(axes)->Iterations(60);
BENCHMARK(tova)->Name("decode/tova")->Apply(axes)->Iterations(5);
BENCHMARK(streaming_llm_contiguous)->Name("report/decode/streaming_llm_contiguous")->Apply(axes)->Iterations(200);
BENCHMARK(streaming_llm_slack)->Name("report/decode/streaming_llm_slack")->Apply(axes)->Iterations(4);

}  // namespace
