// SPDX-License-Identifier: Apache-2.0
// Compactor's leverages weigh as much as the part of a lane that its budget drops, whatever kind of budget that is; and
// sketches that a registry knows.

#include "support/method.hpp"

namespace compactor_test {

using namespace kvpolicy_test;

constexpr int tokens = 20;

std::vector<told_of_lane> some_tokens() {
  dice random(11);
  std::vector<told_of_lane> made(told_lanes::lanes);
  for (told_of_lane& one : made) {
    for (int e = 0; e < tokens; ++e) {
      one.positions.push_back(e);
      one.log_beta.push_back(0);
      one.born.push_back(0);
      auto const row = [&] {
        reference::row of;
        for (int d = 0; d < told_lanes::dims; ++d) of.push_back(random.below(19) - 9);
        return of;
      };
      one.keys.push_back(row());
      one.values.push_back(row());
      for (auto& head : one.queries) head.push_back(row());
    }
  }
  return made;
}

/// The scores of all lanes.
template <class Policy>
std::vector<float> scores_of(Policy const& policy) {
  told_lanes now(tokens + 4);
  auto [state, plan] = state_and_plan(now.exec, policy, now.view());
  now.forward(policy, state, some_tokens());
  now.decide(policy, state, plan);
  std::vector<float> made;
  for (int s = 0; s < told_lanes::lanes; ++s) {
    for (int e = 0; e < tokens; ++e) made.push_back(plan.score(s, e));
  }
  return made;
}

std::vector<float> blended(double part) {
  return scores_of(kv::eviction{.score = kv::compactor{.sinks = 2, .recent = 1, .chunk = 6, .blend = part},
                                .budget = kv::per_lane{3}});
}

constexpr kv::compactor by_budget{.sinks = 2, .recent = 1, .chunk = 6};

TEST_SUITE("scorers/compactor") {
  TEST_CASE("leverages weigh as much as the part that is dropped") {
    for (int const kept : {0, 5, 19}) {
      auto const expected = blended(1 - kept / 20.0);
      CHECK(scores_of(kv::eviction{.score = by_budget, .budget = kv::per_lane{kept}}) == expected);
      CHECK(scores_of(kv::eviction{.score = by_budget, .budget = kv::per_layer{kept}}) == expected);
      CHECK(scores_of(kv::any_policy(kv::eviction{.score = by_budget, .budget = kv::per_lane{kept}})) == expected);
      kv::eviction const shared{.score = by_budget, .budget = kv::shared_out<kv::hits>{.tokens = kept}};
      CHECK(scores_of(shared) == expected);
      CHECK(scores_of(kv::any_policy(shared)) == expected);
    }
    CHECK(scores_of(kv::eviction{.score = by_budget, .budget = kv::drop_ratio{0.66, kv::rounding::exact, true}}) ==
          blended(1 - 6 / 20.0));
    CHECK(scores_of(kv::parse("compactor(sinks=2, recent=1, chunk=6) | budget(ratio=0.75) | when(prefill)")) ==
          blended(0.75));
    CHECK(scores_of(kv::parse("compactor(sinks=2, recent=1, chunk=6) | budget(8, by=ramp)")) == blended(0.6));
  }

  TEST_CASE("a stage around it knows the budget, too") {
    auto const pooled = [](double blend, int kept) {
      kv::pooled const score{.score_of = kv::compactor{.sinks = 2, .recent = 1, .chunk = 6, .blend = blend},
                             .pool = kv::avg_pool{3}};
      return kv::eviction{.score = score, .budget = kv::per_lane{kept}};
    };
    CHECK(scores_of(pooled(-1, 5)) == scores_of(pooled(0.75, 5)));
    CHECK(scores_of(kv::any_policy(pooled(-1, 5))) == scores_of(pooled(0.75, 5)));
    CHECK(scores_of(pooled(-1, 5)) != scores_of(pooled(0.5, 5)));
  }

  TEST_CASE("a sketch that the registry knows is that of the scorer") {
    std::vector<float> numbers(4 * 4 * 3);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i * 7 % 11) - 5;
    kv::rows_of_heads const of_lanes{{numbers.data(), 0, 24, 12}, 12}, one{{numbers.data()}, 12};
    kv::registry known = kv::shipped();
    auto const without = scores_of(known.parse("leverage | budget(5)"));
    for (kv::rows_of_heads const& sketch : {of_lanes, one}) {
      auto const typed = scores_of(kv::eviction{.score = kv::leverage{.given = sketch}, .budget = kv::per_lane{5}});
      CHECK(typed != without);
      known.table("sketch", sketch);
      CHECK(scores_of(known.parse("leverage(sketch=7) | budget(5)")) == typed);
      CHECK(scores_of(known.parse("compactor(chunk=6) | budget(5)")) ==
            scores_of(kv::eviction{.score = kv::compactor{.chunk = 6, .given = sketch}, .budget = kv::per_lane{5}}));
    }
    kv::eviction const wrong{.score = kv::leverage{.given = {{numbers.data()}, 13}}};
    CHECK(error_of([&] { (void)scores_of(wrong); }) ==
          "make_state: leverage.given.dims = 13, but a sketch has columns of 4 numbers");
  }

  TEST_CASE("decisions allocate nothing") {
    auto const none = [](auto const& policy) {
      told_lanes now(tokens + 4);
      auto [state, plan] = state_and_plan(now.exec, policy, now.view());
      now.forward(policy, state, some_tokens());
      now.decide(policy, state, plan);  // what the test itself tells has its memory then
      long const before = allocations_in([&] { now.decide(kv::policies::knorm({.budget = 5}), state, plan); });
      CHECK(allocations_in([&] { now.decide(policy, state, plan); }) <= before);
    };
    none(kv::eviction{.score = kv::leverage{}, .budget = kv::per_lane{5}});
    none(kv::eviction{.score = by_budget, .budget = kv::per_lane{5}});
    none(kv::eviction{.score = kv::cap_kv{}, .budget = kv::per_lane{5}});
  }

  TEST_CASE("numbers of a layer are no scores of a rank's heads") {
    CHECK_FALSE(kv::detail::facts_of(kv::compactor{}).safe_across_ranks);
    CHECK_FALSE(kv::detail::facts_of(kv::leverage{}).safe_across_ranks);
    CHECK(kv::detail::facts_of(kv::cap_kv{}).safe_across_ranks);
    CHECK_FALSE(kv::detail::facts_of(kv::compactor{.blend = 0.5}).reads_budget);
  }
}

}  // namespace compactor_test
