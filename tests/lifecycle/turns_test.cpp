// SPDX-License-Identifier: Apache-2.0
// Decisions in turns: the same result, in a plan of bounded size.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

mock_options shape_of(int sequences) {
  mock_options how;
  how.model = {.layers = 3, .query_heads = 2, .kv_heads = 2, .head_dim = 8};
  how.sequences = sequences;
  how.bound = 40;
  return how;
}

struct outcome {
  kv::report report;
  kv::apply_stats stats;
  mock_cache::snapshot memory;
};

/// Evicts in a batch of four sequences with different numbers of entries.
template <class Policy>
outcome evicted(Policy const& policy, kv::at_once const& size) {
  mock_cache cache(shape_of(4));
  for (int i = 0; i < cache.lane_count(); ++i) {
    cache.put(cache.lane_at(i), up_to(10 + 9 * cache.lane_at(i).sequence));
  }
  kv::host_executor exec;
  kv::cache view = cache.view();
  auto [state, plan] = state_and_plan(exec, policy, view, size, kv::compact{});
  outcome made;
  kv::evict(exec, policy, kv::signals{view.lanes, kv::keys_of(view)}, kv::compact{}, view, state, plan, &made.stats);
  made.report = plan.report();
  made.memory = cache.save();
  return made;
}

TEST_SUITE("turns") {
  TEST_CASE("a decision in turns is the decision at once") {
    kv::eviction const apart{.score = kv::knorm{}, .budget = kv::per_lane{12}};
    kv::eviction const layers{.score = kv::knorm{}, .budget = kv::per_layer{12}};
    kv::eviction const sequences{.score = kv::knorm{}, .budget = kv::per_sequence{12}};
    auto const same = [](auto const& policy, std::vector<kv::at_once> const& sizes) {
      outcome const whole = evicted(policy, {});
      CHECK(whole.report.triggered > 0);
      for (kv::at_once const& size : sizes) {
        INFO(size.entries << " entries, " << size.sequences << " sequences");
        outcome const turns = evicted(policy, size);
        CHECK(turns.report == whole.report);
        CHECK(turns.stats == whole.stats);
        CHECK(turns.memory == whole.memory);
      }
    };
    same(apart, {{.sequences = 1}, {.sequences = 3}, {.entries = 80}, {.entries = 170}, {.entries = 500}});
    same(layers, {{.sequences = 2}, {.entries = 80}});
    same(sequences, {{.sequences = 3}, {.entries = 240}});
  }

  TEST_CASE("a plan that no turn fits into, and a batch that is larger than the plan, are refused") {
    kv::host_executor exec;
    mock_cache cache(shape_of(4));
    kv::cache view = cache.view();
    kv::eviction const layers{.score = kv::knorm{}, .budget = kv::per_layer{12}};
    kv::eviction const sequences{.score = kv::knorm{}, .budget = kv::per_sequence{12}};
    CHECK(
        error_of([&] { static_cast<void>(kv::make_plan(exec, layers, view, kv::at_once{.entries = 79})); }) ==
        "make_plan: at_once.entries = 79, but one layer of a sequence has 80 entries that are decided about together");
    CHECK(error_of([&] { static_cast<void>(kv::make_plan(exec, sequences, view, kv::at_once{.entries = 239})); }) ==
          "make_plan: at_once.entries = 239, but one sequence has 240 entries that are decided about together");
    CHECK(error_of([&] { static_cast<void>(kv::make_plan(exec, layers, view, kv::at_once{.sequences = -1})); }) ==
          "make_plan: at_once.sequences = -1, but a count cannot be negative");
    auto [state, plan] = state_and_plan(exec, layers, view, kv::at_once{.sequences = 2});
    kv::signals const in{view.lanes, kv::keys_of(view)};
    CHECK(error_of([&] { kv::decide(exec, layers, in, state, plan); }) ==
          "decide: signals.lanes = 24 segments, but the plan decides about 12 at once: evict decides about more in "
          "turns");
  }

  TEST_CASE("64 sequences of 131,072 entries are decided about in a plan of less than 1 GB") {
    kv::shape const model{.layers = 32, .query_heads = 32, .kv_heads = 8, .head_dim = 128};
    int const bound = 131072;
    int const sequences = 64;
    std::vector<int> counts(sequences, 300);
    std::vector<int> positions(as_size(sequences) * as_size(bound));
    for (int s = 0; s < sequences; ++s) {
      std::iota(positions.begin() + std::ptrdiff_t{s} * bound, positions.begin() + std::ptrdiff_t{s + 1} * bound, 0);
    }
    counts[40] = bound;
    std::byte memory[256]{};  // a scorer of positions reads no row
    auto const plane = [&](std::byte* base) {
      return kv::plane{.base = base,
                       .element = kv::codec::opaque,
                       .channels = 128,
                       .layer_stride = 1ll << 40,
                       .unit_stride = 1ll << 34,
                       .token_stride = 1ll << 12,
                       .head_stride = 1ll << 8,
                       .channel_stride = 1};
    };
    kv::cache const all{.shape = model,
                        .lanes = {.sequences = sequences,
                                  .layer_begin = 0,
                                  .layer_end = model.layers,
                                  .heads = model.kv_heads,
                                  .capacity = bound,
                                  .count = {counts.data(), 1, 0, 0},
                                  .position = {positions.data(), bound, 0, 0}},
                        .k = plane(memory),
                        .v = plane(memory + (1 << 7)),
                        .where = kv::identity_map(bound, sequences)};
    kv::eviction const policy{.score = kv::streaming_llm{4}, .budget = kv::per_lane{1024}};
    kv::at_once const size{.entries = 100'000'000};
    kv::required const need = kv::required_bytes<kv::host_executor>(policy, all, size, kv::compact{});
    CHECK(need.plan < 1'000'000'000);
    CHECK(need.state == std::size_t{64} * 32 * 8);  // an epoch for each slot and layer
    CHECK(kv::required_bytes<kv::host_executor>(policy, all).plan > 17'000'000'000);
    kv::host_executor exec(2);
    auto [state, plan] = state_and_plan(exec, policy, all, size);
    int turns = 0;
    kv::for_each_turn(plan, all.lanes, [&](kv::lanes const& turn) {
      ++turns;
      kv::decide(exec, policy, kv::signals{turn}, state, plan);
      for (int i = 0; i < turn.size(); i += 97) {
        auto const kept = plan.keep().listed(i);
        bool const full = turn.at(i).sequence == 40;
        CHECK(kept.size() == (full ? 1024u : 300u));
        CHECK(kept[3] == 3);
        CHECK(kept[4] == (full ? bound - 1020 : 4));
        CHECK(kept.back() == (full ? bound : 300) - 1);
      }
    });
    CHECK(turns == 32);  // two sequences of 33,554,432 entries fit
  }
}

}  // namespace
