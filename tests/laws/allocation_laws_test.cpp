// SPDX-License-Identifier: Apache-2.0
// After make_plan and make_state nothing allocates while lanes grow to their bound; and an allocation that fails there
// leaves everything as it was.

#include "laws/subjects.hpp"

namespace {

using namespace kvpolicy_test;

mock_options growing_shape() {
  return {.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 16},
          .sequences = 2,
          .bound = 24,
          .element = kv::codec::f16,
          .memory = arrangement::hnd,
          .where = kv::locating::block_table,
          .rows = content::fingerprint};
}

template <class Scorer>
law_policy<Scorer> policy_with(int budget) {
  Scorer score{};
  if constexpr (std::same_as<Scorer, kv::snapkv>) score.window = 4;
  return {.score = score, .protect = {{1}, {0, 0}}, .budget = {budget}};
}

/// Appends token by token until the bound is reached, or `steps` at most; every library call is counted.
template <class Scorer>
long allocations_of_history(int budget, int threads, int steps) {
  mock_cache cache(growing_shape());
  auto const policy = policy_with<Scorer>(budget);
  kv::host_executor exec(threads);
  auto [state, plan] = state_and_plan(exec, policy, cache.view());
  current_queries row(cache, kv::codec::f16, 1, 1);
  kv::cache view = cache.view();
  long counted = 0;
  for (int p = 0; p < steps; ++p) {
    for (int s = 0; s < 2; ++s) row.set_position(s, 0, p);
    kv::signals const in{view.lanes, kv::keys_of(view), kv::queries{row.view()}};
    counted += allocations_in([&] {
      for (int s = 0; s < 2; ++s) {
        kv::append(exec, view, state, {s, 1, p, true});
        kv::truncate(exec, view, state, s, p + 1);
        kv::commit(exec, view, s, 1);
      }
      observe_and_decide(exec, policy, in, state, plan);
      kv::apply(exec, kv::compact{}, plan, view, state);
    });
  }
  int const expected = std::same_as<Scorer, kv::full> || budget > steps ? steps : budget;
  for (int i = 0; i < cache.lane_count(); ++i) CHECK(cache.count(cache.lane_at(i)) == expected);
  return counted;
}

}  // namespace

TEST_SUITE("laws/allocation") {
  TEST_CASE("the counter counts, and fails the allocation that it is told to fail") {
    CHECK(allocations_in([] { std::vector<int> const some(3); }) == 1);
    CHECK(fails_at_allocation(0, [] { std::vector<int> const some(3); }));
    CHECK(!fails_at_allocation(1, [] { std::vector<int> const some(3); }));
  }

  TEST_CASE_TEMPLATE_DEFINE("no call allocates while lanes grow to their bound, token by token", Scorer, growth_law) {
    for (int const threads : {1, 3}) {
      CHECK(allocations_of_history<Scorer>(24, threads, 24) == 0);
      if (!std::same_as<Scorer, kv::full>) CHECK(allocations_of_history<Scorer>(7, threads, 40) == 0);
    }
  }
  TEST_CASE_TEMPLATE_APPLY(growth_law, every_scorer);

  TEST_CASE_TEMPLATE_DEFINE("an allocation that fails in make_state or make_plan changes nothing", Scorer,
                            failure_law) {
    filled_cache cache(suited<Scorer>(growing_shape()), false);
    auto const policy = policy_with<Scorer>(7);
    kv::host_executor exec(2);
    auto const before = cache.save();
    using state_type = kv::state<kv::host_executor>;
    using plan_type = kv::plan<kv::host_executor>;
    std::unique_ptr<state_type> state;
    std::unique_ptr<plan_type> plan;
    long failures = 0;
    for (long n = 0;
         fails_at_allocation(n,
                             [&] {
                               state = std::make_unique<state_type>(kv::make_state(exec, policy, cache.view()));
                               plan = std::make_unique<plan_type>(kv::make_plan(exec, policy, cache.view()));
                             });
         ++n) {
      ++failures;
    }
    CHECK(failures >= 6);  // five buffers of a plan, and scratch
    CHECK(cache.save() == before);
    kv::cache view = cache.view();
    current_queries rows(cache, kv::codec::f16, 4, 4);
    kv::signals const in{view.lanes, kv::keys_of(view), kv::queries{rows.view()}};
    kv::observe(exec, policy, in, *state);
    kv::decide(exec, policy, in, *state, *plan);
    kv::apply(exec, kv::compact{}, *plan, view, *state);
  }
  TEST_CASE_TEMPLATE_APPLY(failure_law, every_scorer);
}
