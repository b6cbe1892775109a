// SPDX-License-Identifier: Apache-2.0
// The steady state of a decode loop that drops 64 entries of each lane once in 64 steps: every policy that can decide
// in a decode loop, with every applier that takes the pick `top` and keeps entries apart. Beside each, in the same run,
// its floor: a read of the columns that the rule needs, and a move of what the applier moves.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "decode_model.hpp"

namespace {

namespace kv = kvpolicy;
using bench::decode_model, bench::read_rows, bench::timed_steps;

constexpr int slack = 63;
enum applier { compact, list_rewrite, dead_slot, mask };

/// The signals of one token's forward, for the scorers that read them.
class forward_signals {
 public:
  forward_signals(int bound, kv::codec element, bool probabilities)
      : bound_(bound),
        element_(element),
        queries_(std::size_t{36} * 32 * 128 * static_cast<std::size_t>(kv::bytes_of(element))),
        probabilities_(std::size_t{36} * 32 * static_cast<std::size_t>(probabilities ? bound : 0) * 4 + 64),
        log_beta_(decode_model::lanes(), -0.01f) {
    bench::fill_elements(queries_, element, 2, 11);
    bench::fill_elements(probabilities_, kv::codec::f32, 0.5f, 5);
  }

  template <class Score, class With>
  void give(kv::cache const& cache, int position, With const& with) {
    kv::keys const keys = kv::keys_of(cache);
    if constexpr (std::is_same_v<Score, kv::h2o>) {
      std::int64_t const row = 4LL * bound_;
      kv::attention_probabilities given{.base = probabilities_.data(), .layer = row * 32, .head = row, .row = row};
      given.heads = 32;
      given.rows = 1;
      given.entries = cache.lanes.capacity;
      given.position = {&position};
      with(kv::signals{cache.lanes, keys, given});
    } else if constexpr (std::is_same_v<Score, kv::trim_kv>) {
      kv::log_beta born;
      born.base = reinterpret_cast<std::byte const*>(log_beta_.data());
      born.element = kv::codec::f32;
      born.layer = 4LL * cache.lanes.heads;
      born.head = born.entry = 4;
      born.entries = 1;
      with(kv::signals{cache.lanes, keys, born});
    } else {
      with(kv::signals{cache.lanes, keys, kv::queries_of(queries_.data(), element_, bench::whole_model, 1, &position)});
    }
  }
  [[nodiscard]] std::byte const* probabilities() const { return probabilities_.data(); }

 private:
  int bound_;
  kv::codec element_;
  bench::memory queries_, probabilities_;
  std::vector<float> log_beta_;
};

/// The tables of an engine, and a call of one of the appliers.
struct engine_tables {
  engine_tables(decode_model& of, applier by, int positions)
      : model(&of),
        how(by),
        freed(decode_model::lanes() * static_cast<std::size_t>(of.bound)),
        freed_count(decode_model::lanes()),
        map(by == dead_slot ? decode_model::lanes() * static_cast<std::size_t>(positions) : 0),
        visible(by == mask ? decode_model::lanes() * units() : 0, std::byte{1}),
        width(positions) {}
  [[nodiscard]] std::size_t units() const { return static_cast<std::size_t>(model->bound); }

  /// What an engine writes before a token is appended: its slot in the map, and its unit in the mask.
  void place(int i, int position, int ordinal) {
    if (how == compact || how == list_rewrite) return;
    int const slot = model->list[static_cast<std::size_t>(i * model->bound + ordinal)];
    if (how == dead_slot)
      map[static_cast<std::size_t>(i) * static_cast<std::size_t>(width) + static_cast<std::size_t>(position)] = slot;
    if (how == mask) visible[static_cast<std::size_t>(i) * units() + static_cast<std::size_t>(slot)] = std::byte{1};
  }
  template <class Plan, class State>
  void apply(kv::host_executor& exec, Plan const& plan, kv::cache& cache, State& state) {
    kv::by_lane<int> const list = model->table(model->list);
    kv::unit_list const to{model->table(freed), {freed_count.data(), 0, 8, 1}};
    if (how == compact) return kv::apply(exec, kv::compact{}, plan, cache, state);
    if (how == list_rewrite) return kv::apply(exec, kv::list_rewrite<>{.list = list, .freed = to}, plan, cache, state);
    if (how == dead_slot) {
      return kv::apply(
          exec,
          kv::dead_slot<>{
              .list = list, .map = {map.data(), 0, 8LL * width, width}, .dead = model->bound - 1, .freed = to},
          plan, cache, state);
    }
    auto const row = static_cast<std::int64_t>(units());
    kv::apply(exec, kv::mask{.list = list, .rows = {{visible.data(), 0, 8 * row, row}, kv::mask_form::boolean, row}},
              plan, cache, state);
  }

  decode_model* model;
  applier how;
  std::vector<int> freed, freed_count, map;
  std::vector<std::byte> visible;
  int width;
};

/// Reads what the rule reads in the decision, and for H2O what it reads and writes in every step.
template <class Score>
void read_columns(kv::host_executor& exec, decode_model& model, forward_signals& given, auto const& state) {
  std::int64_t const row = 4LL * model.bound;
  if constexpr (std::is_same_v<Score, kv::tova> || std::is_same_v<Score, kv::snapkv>) {
    bench::floors::read_pass(exec, model.k.data(), model.k.size());
  } else if constexpr (!std::is_same_v<Score, kv::streaming_llm> && !std::is_same_v<Score, kv::random_scores>) {
    read_rows(exec, state.columns()[0].rows.data, state.columns()[0].rows.head, model.bound);
  }
  if constexpr (std::is_same_v<Score, kv::trim_kv> || std::is_same_v<Score, kv::h2o>) {
    read_rows(exec, reinterpret_cast<std::byte const*>(model.position.data()), row, model.bound);
  }
  if constexpr (std::is_same_v<Score, kv::h2o>) {
    for (int step = 0; step <= slack; ++step) {
      for (int h = 0; h < 4; ++h) read_rows(exec, given.probabilities() + h * 288 * row, row, model.bound);
      exec.for_each(288, [&](int i, int) {
        auto* const mass = reinterpret_cast<float*>(state.columns()[0].rows.data + i * state.columns()[0].rows.head);
        for (int e = 0; e < model.bound; ++e) mass[e] += 1e-9f;
      });
    }
  }
}

/// Moves the rows behind each lane's first dropped entry, and copies as much of its list and positions.
void move_kept(kv::host_executor& exec, decode_model& model, engine_tables& tables, std::vector<int> const& first) {
  exec.for_each(288, [&](int i, int) {
    auto const bound = static_cast<std::size_t>(model.bound);
    auto const from = static_cast<std::size_t>(first[static_cast<std::size_t>(i)]);
    std::size_t const begin = static_cast<std::size_t>(i) * bound;
    std::size_t const kept = bound - slack - 2;
    if (from >= kept) return;
    std::size_t const moved = kept - from;
    int* const to = tables.freed.data() + begin + from;
    std::memcpy(to, model.position.data() + begin + from + slack + 1, moved * 4);
    if (tables.how != compact) {
      std::memcpy(to, model.list.data() + begin + from + slack + 1, moved * 4);
      return;
    }
    for (bench::memory const* plane : {&model.k, &model.v}) {
      std::size_t const row = model.row_bytes();
      std::byte* const lane = plane->data() + begin * row;
      std::memmove(lane + from * row, lane + (from + slack + 1) * row, moved * row);
    }
  });
}

template <class Policy>
void cycles(benchmark::State& state, Policy const& policy) {
  using score_type = std::remove_cvref_t<decltype(policy.score)>;
  int const budget = static_cast<int>(state.range(0));
  auto const element = static_cast<kv::codec>(state.range(1));
  auto const by = static_cast<applier>(state.range(2));
  constexpr int rounds = 3;
  double const bytes = 288.0 * (budget + slack + 2) * 2 * 128 * kv::bytes_of(element);
  if (!bench::has_memory(state, bytes)) return;
  decode_model model(budget, slack + 2, element, by != compact, false);  // the last place is the dead slot
  std::memset(model.k.data(), 0, model.k.size());
  std::memset(model.v.data(), 0, model.v.size());
  engine_tables tables(model, by, budget + (slack + 1) * (rounds + 2));
  forward_signals given(model.bound, element, std::is_same_v<score_type, kv::h2o>);
  kv::host_executor exec(static_cast<int>(state.range(3)));
  kv::cache cache = model.view();
  auto held = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, kv::compact{}, kv::list_rewrite<>{}, kv::dead_slot<>{}, kv::mask{});
  std::vector<int> first(decode_model::lanes());
  int position = 0;
  timed_steps taken;
  auto const step = [&](bool filling) {
    model.write(cache, filling);
    for (int i = 0; i < 288; ++i) tables.place(i, position, model.count[static_cast<std::size_t>(i)]);
    taken.time(0, [&] { kv::append(exec, cache, held, {.tokens = 1, .position = position}); });
    given.template give<score_type>(cache, position, [&](auto const& in) {
      bool const old = filling && std::is_same_v<score_type, kv::h2o>;  // its sums begin with the answer
      if (!old) taken.time(1, [&] { kv::observe(exec, policy, in, held); });
      bool due = false;
      taken.time(2, [&] {
        due = kv::due(policy, cache);
        if (due) kv::decide(exec, policy, in, held, plan);
      });
      if (!due) return;
      for (int i = 0; i < 288; ++i) {
        auto const kept = plan.keep().listed(kv::segment_of(cache.lanes, plan.keep().decides, i));
        int& at = first[static_cast<std::size_t>(i)];
        for (at = 0; at < std::ssize(kept) && kept[static_cast<std::size_t>(at)] == at;) ++at;
      }
      taken.time(3, [&] { tables.apply(exec, plan, cache, held); });
    });
    ++position;
  };
  while (position < budget) step(true);
  auto const cycle = [&] {
    for (int i = 0; i <= slack; ++i) step(false);
  };
  cycle();
  taken = {};
  for (auto _ : state) {
    cycle();
    double const seconds = taken.last_step();
    taken.floor(bench::seconds_of([&] {
      read_columns<score_type>(exec, model, given, held);
      move_kept(exec, model, tables, first);
    }));
    state.SetIterationTime(seconds);
  }
  if (*cache.lanes.count.row({}) != budget) return state.SkipWithError("wrong result");
  taken.report(state, slack + 1);
  state.SetLabel(kv::name_of(element));
}

template <class Score>
void drop_64(benchmark::State& state) {
  kv::per_lane const budget{static_cast<int>(state.range(0))};
  cycles(state, kv::eviction{.score = Score{}, .budget = budget, .trigger = kv::over_budget{slack}});
}

void axes(benchmark::internal::Benchmark* to) {
  to->ArgNames({"budget", "element", "applier", "threads"})
      ->ArgsProduct({{1024, 4096, 32768},
                     {static_cast<int>(kv::codec::f32), static_cast<int>(kv::codec::bf16)},
                     {compact, list_rewrite, dead_slot, mask},
                     {1, 2}})
      ->UseManualTime()
      ->Iterations(3)
      ->Unit(benchmark::kMillisecond);
}
BENCHMARK(drop_64<kv::streaming_llm>)->Name("decode/streaming_llm")->Apply(axes);
BENCHMARK(drop_64<kv::random_scores>)->Name("decode/random")->Apply(axes);
BENCHMARK(drop_64<kv::recorded_knorm>)->Name("decode/knorm")->Apply(axes);
BENCHMARK(drop_64<kv::trim_kv>)->Name("decode/trim_kv")->Apply(axes);
BENCHMARK(drop_64<kv::h2o>)->Name("decode/h2o")->Apply(axes);
BENCHMARK(drop_64<kv::tova>)->Name("decode/tova")->Apply(axes);
BENCHMARK(drop_64<kv::snapkv>)->Name("decode/snapkv")->Apply(axes);

}  // namespace
