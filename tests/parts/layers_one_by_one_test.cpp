// SPDX-License-Identifier: Apache-2.0
// CAKE where the layers of a prompt come one by one: the layers that are there are cut again, and end as one decision.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

mock_options shape_of(int layers, int heads, int entries, std::uint64_t seed) {
  return {.model = {.layers = layers, .query_heads = 2 * heads, .kv_heads = heads, .head_dim = 4},
          .bound = entries,
          .rows = content::smooth,
          .seed = seed};
}

/// A prompt's entries and the last query rows. Two of the same shape hold the same.
struct prompt {
  explicit prompt(mock_options const& shape) : cache(shape), queries(cache, kv::codec::f32, 4, 4) {
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), up_to(shape.bound));
    fill(queries, cache, content::smooth);
    for (int r = 0; r < 4; ++r) queries.set_position(0, r, std::max(0, shape.bound - 4 + r));
  }
  /// What is left of each lane.
  [[nodiscard]] std::vector<std::vector<int>> left() {
    std::vector<std::vector<int>> all;
    for (int i = 0; i < cache.lane_count(); ++i)
      all.push_back(cache.positions(cache.lane_at(i), cache.committed(cache.lane_at(i))));
    return all;
  }
  mock_cache cache;
  mock_queries queries;
};

auto policy_of(int tokens, kv::moments const& by) {
  return kv::eviction{.score = kv::frozen<kv::cake>{{.window = 3, .pool = kv::avg_pool{3}}},
                      .budget = kv::shared_out{.tokens = tokens, .by = by}};
}

TEST_SUITE("parts/layers_one_by_one") {
  TEST_CASE("layers that are cut again when later ones come end as one decision about all of them") {
    int cut_again = 0;
    holds("cascade == one shot", 150, [&] {
      int const layers = *rc::gen::inRange(1, 7), entries = *rc::gen::inRange(4, 60);
      int const tokens = *rc::gen::inRange(0, entries + 2);
      mock_options const shape =
          shape_of(layers, *rc::gen::element(1, 2), entries, *rc::gen::inRange<std::uint64_t>(1, 999));
      kv::moments const by{.tau1 = *rc::gen::element(1.0, 1.6), .tau2 = *rc::gen::element(1.0, 4.0, 0.4), .window = 3};
      kv::host_executor exec(*rc::gen::element(1, 3));
      prompt whole(shape), part(shape);
      auto const at_once = policy_of(tokens, by);
      auto [whole_state, whole_plan] = state_and_plan(exec, at_once, whole.cache.view());
      kv::cache all = whole.cache.view();
      kv::signals const shown{all.lanes, kv::keys_of(all), kv::queries{whole.queries.view()}};
      observe_and_decide(exec, at_once, shown, whole_state, whole_plan);
      kv::apply(exec, kv::compact{}, whole_plan, all, whole_state);

      auto const one_by_one = policy_of(tokens, by.one_by_one(layers));
      auto [state, plan] = state_and_plan(exec, one_by_one, part.cache.view());
      kv::cache now = part.cache.view();
      std::vector<int> before;
      for (int there = 1; there <= layers; ++there) {
        kv::signals in{now.lanes.layers_only(there - 1, there), kv::keys_of(now), kv::queries{part.queries.view()}};
        kv::observe(exec, one_by_one, in, state);
        in.lanes = now.lanes.layers_only(0, there);
        kv::decide(exec, one_by_one, in, state, plan);
        kv::apply(exec, kv::compact{}, plan, now, state);
        std::vector<int> counts;
        for (int l = 0; l < there; ++l) counts.push_back(part.cache.committed({0, l, 0}));
        for (std::size_t l = 0; l < before.size(); ++l) {
          RC_ASSERT(counts[l] <= before[l]);
          cut_again += counts[l] < before[l] ? 1 : 0;
        }
        before = counts;
      }
      RC_ASSERT(part.left() == whole.left());
    });
    CHECK(cut_again > 0);
  }

  TEST_CASE("without the number of layers a decision about some of them is refused") {
    prompt some(shape_of(3, 1, 20, 5));
    kv::host_executor exec;
    auto const policy = policy_of(8, {.window = 3});
    auto [state, plan] = state_and_plan(exec, policy, some.cache.view());
    kv::cache const now = some.cache.view();
    kv::signals const in{now.lanes.layers_only(0, 1), kv::keys_of(now), kv::queries{some.queries.view()}};
    kv::observe(exec, policy, in, state);
    CHECK(error_of([&] { kv::decide(exec, policy, in, state, plan); }) ==
          "decide: signals.lanes.layers = 1, but all 3 layers share this budget");
  }
}

}  // namespace
