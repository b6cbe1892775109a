// SPDX-License-Identifier: Apache-2.0
// Requests in slots: a step over some slots of many against the same sequences alone; fork, save and load against
// memcpy; a decision in turns against the same at once.
#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <numeric>
#include <span>
#include <vector>

#include "../measure.hpp"

namespace {

namespace kv = kvpolicy;

/// A cache of slots in bf16, [layer][slot][entry][head][dim], whose lanes have counts and positions of their own.
class slot_cache {
 public:
  slot_cache(int layers, int slots, int bound)
      : model_{.layers = layers, .query_heads = 32, .kv_heads = 8, .head_dim = 128},
        slots_(slots),
        bound_(bound),
        k_(bytes()),
        v_(bytes()),
        counts_(lanes()),
        positions_(lanes() * static_cast<std::size_t>(bound)) {
    for (bench::memory* each : {&k_, &v_}) {
      auto* const elements = each->as<std::uint16_t>();
      for (std::size_t i = 0; i < each->size() / 2; ++i)
        elements[i] = static_cast<std::uint16_t>(0x3C00 + i * 40503 % 1024);
    }
  }

  [[nodiscard]] kv::cache view() {
    std::int64_t const row = 2 * 128;
    std::int64_t const token = row * 8;
    auto const plane = [&](bench::memory& of) {
      return kv::plane{.base = of.data(),
                       .element = kv::codec::bf16,
                       .channels = 128,
                       .layer_stride = token * bound_ * slots_,
                       .unit_stride = token * bound_,
                       .token_stride = token,
                       .head_stride = row,
                       .channel_stride = 2};
    };
    std::int64_t const heads = model_.kv_heads;
    std::int64_t const all = heads * model_.layers;
    return {.shape = model_,
            .lanes = {.sequences = slots_,
                      .layer_end = model_.layers,
                      .heads = model_.kv_heads,
                      .capacity = bound_,
                      .count = {counts_.data(), all, heads, 1},
                      .position = {positions_.data(), all * bound_, heads * bound_, bound_}},
            .k = plane(k_),
            .v = plane(v_),
            .where = kv::identity_map(bound_, slots_)};
  }

 private:
  [[nodiscard]] std::size_t lanes() const { return static_cast<std::size_t>(slots_ * model_.layers * model_.kv_heads); }
  [[nodiscard]] std::size_t bytes() const { return lanes() * static_cast<std::size_t>(bound_) * 128 * 2; }

  kv::shape model_;
  int slots_;
  int bound_;
  bench::memory k_, v_;
  std::vector<int> counts_, positions_;
};

constexpr int active = 8;
constexpr int budget = 1024;

/// The steady state of a decode loop over eight sequences: a token each, a decision, and what it drops.
template <class Policy>
class decode_loop {
 public:
  decode_loop(Policy const& policy, int slots, std::vector<int> list)
      : list_(std::move(list)),
        policy_(policy),
        memory_(4, slots, budget + 8),
        all_(memory_.view()),
        step_(list_.empty() ? all_ : kv::only(all_, {.slots = list_.data(), .size = active})),
        state_(kv::make_state(exec_, policy, all_)),
        plan_(kv::make_plan(exec_, policy, all_, kv::at_once{.sequences = active}, kv::compact{})),
        rows_(static_cast<std::size_t>(4 * active) * 32 * 128, 0.25f),
        positions_(active) {
    advance(budget);
  }
  void operator()() { advance(1); }

 private:
  void advance(int tokens) {
    for (int s = 0; s < active; ++s) {
      kv::append(exec_, step_, state_, {s, tokens, position_});
      positions_[static_cast<std::size_t>(s)] = position_ + tokens - 1;
    }
    position_ += tokens;
    kv::signals const in{step_.lanes, kv::keys_of(step_),
                         kv::queries_of(rows_.data(), all_.shape, 1, positions_.data(), {.sequences = active})};
    kv::observe(exec_, policy_, in, state_);
    kv::evict(exec_, policy_, in, kv::compact{}, step_, state_, plan_);
  }

  kv::host_executor exec_;
  std::vector<int> list_;
  Policy policy_;
  slot_cache memory_;
  kv::cache all_;
  kv::cache step_;
  kv::state<kv::host_executor> state_;
  kv::plan<kv::host_executor> plan_;
  std::vector<float> rows_;
  std::vector<int> positions_;
  int position_ = 0;
};

/// Eight of 64 slots in random order, over eight sequences in eight slots.
template <class Policy>
void step(benchmark::State& state, Policy const& policy) {
  if (!bench::has_memory(state, 2.6e9)) return;
  decode_loop<Policy> some(policy, 64, {41, 3, 60, 17, 8, 55, 22, 34});
  decode_loop<Policy> alone(policy, active, {});
  auto const rounds = bench::in_turn(state, [&] { some(); }, [&] { alone(); });
  state.counters["over_alone"] = rounds.ratio(0, 1);
  state.counters["ms"] = rounds.seconds(0) * 1e3;
}

void step_streaming_llm(benchmark::State& state) {
  step(state, kv::eviction{.score = kv::streaming_llm{4}, .budget = kv::per_lane{budget}});
}
void step_h2o(benchmark::State& state) {
  step(state, kv::eviction{.score = kv::h2o{}, .budget = kv::per_lane{budget}});
}
BENCHMARK(step_streaming_llm)->Name("report/slots/step/policy:streaming_llm")->UseManualTime();
BENCHMARK(step_h2o)->Name("report/slots/step/policy:h2o")->UseManualTime();

/// `fork`, `save` and `load` of a slot of 75 MB of K and V, and the columns of H2O, over memcpy of as many bytes.
void copies(benchmark::State& state) {
  if (!bench::has_memory(state, 6e8)) return;
  slot_cache memory(36, 2, 512);
  kv::cache all = memory.view();
  kv::host_executor exec;
  kv::eviction const policy{.score = kv::h2o{}, .budget = kv::per_lane{512}};
  auto held = kv::make_state(exec, policy, all);
  kv::append(exec, all, held, {0, 512, 0});
  std::size_t const bytes = kv::saved_bytes(exec, all, held, 0);
  bench::memory saved(bytes);
  bench::memory plain(bytes);
  std::memset(saved.data(), 1, bytes);
  std::memset(plain.data(), 1, bytes);
  auto const free_slot = [&] { kv::reset(exec, all, held, 1); };  // fork and load refuse a slot that is used
  auto const rounds = bench::in_turn_after(
      state, free_slot, [&] { kv::fork(exec, all, held, 0, 1); },
      [&] { kv::save(exec, all, held, 0, std::span(saved.data(), bytes)); },
      [&] { kv::load(exec, all, held, 1, std::span<std::byte const>(saved.data(), bytes)); },
      [&] { std::memcpy(plain.data(), saved.data(), bytes); });
  char const* const names[] = {"fork_of_memcpy", "save_of_memcpy", "load_of_memcpy"};
  for (std::size_t i = 0; i < 3; ++i) state.counters[names[i]] = rounds.ratio(3, i);
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK(copies)->Name("report/slots/copies")->UseManualTime();

/// A decision about 16 sequences, two at a time, over the same at once.
void turns(benchmark::State& state) {
  slot_cache memory(2, 16, 2048);
  kv::cache all = memory.view();
  kv::host_executor exec;
  kv::eviction const policy{.score = kv::random_scores{}, .budget = kv::per_lane{512}};
  auto held = kv::make_state(exec, policy, all);
  for (int s = 0; s < 16; ++s) kv::append(exec, all, held, {s, 2048, 0});
  auto whole = kv::make_plan(exec, policy, all);
  auto part = kv::make_plan(exec, policy, all, kv::at_once{.sequences = 2});
  kv::signals const in{all.lanes};
  auto const rounds = bench::in_turn(
      state,
      [&] {
        kv::for_each_turn(part, all.lanes,
                          [&](kv::lanes const& turn) { kv::decide(exec, policy, in.with(turn), held, part); });
      },
      [&] { kv::decide(exec, policy, in, held, whole); });
  state.counters["over_at_once"] = rounds.ratio(0, 1);
}
BENCHMARK(turns)->Name("report/slots/turns")->UseManualTime();

}  // namespace
