// SPDX-License-Identifier: Apache-2.0
// TOVA: the mean over all query heads of what the last row looks at, one keep set for a layer.

#include "reference/methods.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

void decides_as_the_reference() {
  mock_options shape = any_mock();
  shape.shared_entries = true;
  shape.model.head_dim = *rc::gen::element(64, 80, 4);
  shape.model.kv_heads = *rc::gen::inRange(1, 4);
  shape.model.layers = shape.sequences * shape.model.kv_heads > 4 ? 1 : shape.model.layers;
  shape.model.query_heads = shape.model.kv_heads * *rc::gen::element(1, 4, 8);
  bool const latent = shape.memory == arrangement::latent || shape.memory == arrangement::latent_view;
  if (shape.memory == arrangement::one_pool || latent) shape.memory = arrangement::nhd;
  shape.model.value_dim = 0;
  shape.rows = *rc::gen::element(content::smooth, content::few);
  RC_LOG() << shape << '\n';
  mock_cache cache(shape);
  for (int s = 0; s < shape.sequences; ++s) {  // every lane of a sequence holds the same, with holes
    int const drafts = cache.random().below(3) % std::min(3, shape.bound);
    int const count = cache.random().below(shape.bound - drafts + 1);
    std::vector<int> positions = cache.random().subset(shape.bound + 4, count);
    for (int d = 0; d < drafts; ++d) positions.push_back(shape.bound + 4 + d);
    cache.set_drafts(s, drafts);
    for (int i = 0; i < cache.lane_count(); ++i) {
      if (cache.lane_at(i).sequence == s) cache.put(cache.lane_at(i), positions);
    }
  }
  int const rows = *rc::gen::inRange(1, 5);
  current_queries queries(cache, *rc::gen::element(kv::codec::f32, shape.element), rows,
                          rows + *rc::gen::inRange(0, 2));
  kv::eviction<kv::tova> const policy{.score = {.force_last = any_bool()},
                                      .budget = {*rc::gen::inRange(0, shape.bound + 1)},
                                      .trigger = {*rc::gen::element(0, 0, 3)}};
  kv::host_executor exec(*rc::gen::element(1, 3));
  auto [state, plan] = state_and_plan(exec, policy, cache.view());
  kv::signals const in{cache.lanes(), kv::keys_of(cache.view()), kv::queries{queries.view()}};
  observe_and_decide(exec, policy, in, state, plan);
  int const heads = shape.model.kv_heads;
  for (int layer = 0; layer < cache.lane_count() / heads; ++layer) {
    std::vector<reference::lane_attention> lanes;
    for (int h = 0; h < heads; ++h) lanes.push_back(reference_lane(cache, queries, cache.lane_at(layer * heads + h)));
    auto const expected = reference::tova(lanes, policy.budget.tokens, policy.score.force_last, policy.trigger.slack);
    kv::score_view const scores = plan.scores(cache.lanes());
    comparison const result = compare({scores.row(layer), expected.scores.size()}, expected.scores);
    RC_LOG() << "layer " << layer << ": " << result << '\n';
    RC_ASSERT(result.same);
    auto const forced = reference::ends(static_cast<int>(expected.scores.size()), 0, policy.score.force_last ? 1 : 0);
    RC_ASSERT(
        decided_by(listed(plan.keep(), layer), expected.scores, forced, policy.budget.tokens, policy.trigger.slack));
  }
}

}  // namespace

TEST_SUITE("scorers/tova") {
  TEST_CASE("agrees with the reference for groups of 1, 4 and 8 and heads of 64 and 80") {
    holds("scores and keep sets", 300, decides_as_the_reference);
  }

  TEST_CASE("the last token has to earn its place, unless it is forced") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 1}, .shared_entries = true});
    cache.put({0, 0, 0}, {0, 1, 2});
    for (int e = 0; e < 3; ++e) cache.write(of::keys, {0, 0, 0}, e, {2.0 - e});
    mock_queries row(cache, kv::codec::f32, 1, 1);
    row.set_position(0, 0, 2);
    row.write(0, 0, 0, 0, {1.0});
    kv::host_executor exec;
    for (bool const force : {false, true}) {
      kv::eviction<kv::tova> const policy{.score = {.force_last = force}, .budget = {2}};
      auto [state, plan] = state_and_plan(exec, policy, cache.view());
      kv::signals const in{cache.lanes(), kv::keys_of(cache.view()), kv::queries{row.view()}};
      observe_and_decide(exec, policy, in, state, plan);
      CHECK(listed(plan.keep(), 0) == (force ? std::vector<int>{0, 2} : std::vector<int>{0, 1}));
    }
  }

  TEST_CASE("it prints its name and its parameter") { CHECK(kv::to_string(kv::tova{}) == "tova(force_last=false)"); }
}
