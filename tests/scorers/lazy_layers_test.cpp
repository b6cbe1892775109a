// SPDX-License-Identifier: Apache-2.0
// lazy_layers and simlayer_kv: a layer that attends to its ends keeps these, and any other keeps everything.

#include "reference/methods.hpp"
#include "support/specs.hpp"
#include "support/whole_prompt.hpp"

namespace lazy_layers_test {

using namespace kvpolicy_test;

/// Attention of the last rows to the entries of one layer: the mean over rows and all query heads.
reference::row attention_of(mock_cache& cache, mock_queries& queries, int layer, int last) {
  int const heads = cache.model().kv_heads;
  reference::row mean;
  for (int h = 0; h < heads; ++h) {
    reference::lane_attention lane = reference_lane(cache, queries, cache.lane_at(layer * heads + h));
    int const gone = std::max(0, static_cast<int>(lane.query_positions.size()) - last);
    lane.query_positions.erase(lane.query_positions.begin(), lane.query_positions.begin() + gone);
    for (auto& head : lane.queries) head.erase(head.begin(), head.begin() + gone);
    auto const mass =
        reference::attention_mass(lane, {.rows = reference::reduction::mean, .group = reference::reduction::mean});
    mean.resize(mass.size());
    for (std::size_t e = 0; e < mass.size(); ++e) mean[e] += mass[e] / heads;
  }
  return mean;
}

void keeps_ends_or_everything() {
  mock_options const shape = any_prompt_shape();
  RC_LOG() << shape << '\n';
  mock_cache cache(shape);
  for (int s = 0; s < shape.sequences; ++s) {
    auto const positions = cache.random().subset(shape.bound + 4, cache.random().below(shape.bound + 1));
    for (int i = 0; i < cache.lane_count(); ++i) {
      if (cache.lane_at(i).sequence == s) cache.put(cache.lane_at(i), positions);
    }
  }
  int const rows = *rc::gen::inRange(1, 5);
  current_queries queries(cache, *rc::gen::element(kv::codec::f32, kv::codec::bf16), rows, rows);
  kv::lazy_layers const score{.threshold = *rc::gen::element(0.0f, 0.25f, 0.5f, 0.75f, 0.9f, 1.0f),
                              .initial = *rc::gen::element(0, 1, 4),
                              .recent = *rc::gen::element(0, 2, 9, 20, 100),
                              .last = *rc::gen::element(1, 2, 3)};
  kv::eviction const policy{.score = score, .budget = kv::unlimited{}, .pick = kv::at_least{0.5f}};
  kv::host_executor exec(*rc::gen::element(1, 3));
  auto [state, plan] = state_and_plan(exec, policy, cache.view());
  kv::signals const in{cache.lanes(), kv::keys_of(cache.view()), kv::queries{queries.view()}};
  observe_and_decide(exec, policy, in, state, plan);
  for (int layer = 0; layer < cache.lane_count() / shape.model.kv_heads; ++layer) {
    reference::row const a = attention_of(cache, queries, layer, score.last);
    auto const count = static_cast<int>(a.size());
    double sum = 0;
    for (int j = 0; j < count - score.last; ++j) {
      if (j < score.initial || j >= count - score.last - score.recent) sum += a[as_size(j)];
    }
    if (std::fabs(sum - double{score.threshold}) < 1e-5) continue;
    bool const lazy = score.threshold < 1 && count > score.initial + score.recent + score.last &&
                      sum > static_cast<double>(score.threshold);
    std::vector<int> expected;
    for (int j = 0; j < count; ++j) {
      if (!lazy || j < score.initial || j >= count - (score.recent - score.last)) expected.push_back(j);
    }
    RC_ASSERT(listed(plan.keep(), layer) == expected);
  }
}

TEST_SUITE("scorers/lazy_layers") {
  TEST_CASE("a lazy layer keeps its ends, and any other everything") {
    holds("keep sets", 300, keeps_ends_or_everything);
  }

  TEST_CASE("the last row's attention to the ends is compared with the threshold") {
    // The last row attends to the five entries by .3 .05 .05 .1 .5.
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 1}, .shared_entries = true});
    cache.put({}, {0, 1, 2, 3, 4});
    double const mass[] = {0.3, 0.05, 0.05, 0.1, 0.5};
    for (int e = 0; e < 5; ++e) cache.write(of::keys, {}, e, {std::log(mass[e])});
    mock_queries row(cache, kv::codec::f32, 1, 1);
    row.set_position(0, 0, 4);
    row.write(0, 0, 0, 0, {1.0});
    kv::host_executor exec;
    auto const kept = [&](std::string const& fields) {
      kv::any_policy const policy = kv::parse("simlayer_kv(" + fields + ")");
      auto [state, plan] = state_and_plan(exec, policy, cache.view());
      kv::signals const in{cache.lanes(), kv::keys_of(cache.view()), kv::queries{row.view()}};
      kv::observe(exec, policy, in, state);
      CHECK(allocations_in([&] { kv::decide(exec, policy, in, state, plan); }) == 0);
      return listed(plan.keep(), 0);
    };
    // Before the last entry: .3 of the first entry, and .1 of the last one.
    CHECK(kept("threshold=0.39, initial=1, recent=1") == std::vector{0});
    CHECK(kept("threshold=0.41, initial=1, recent=1") == std::vector{0, 1, 2, 3, 4});
    CHECK(kept("threshold=0.44, initial=1, recent=2") == std::vector{0, 4});
    CHECK(kept("threshold=0.2, initial=2, recent=2") == std::vector{0, 1, 2, 3, 4});
    CHECK(kept("initial=0, recent=0") == std::vector{0, 1, 2, 3, 4});
  }

  TEST_CASE("it prints as its parts, has no budget, and refuses what is wrong") {
    std::string const spec =
        "lazy_layers(threshold=0.9, initial=4, recent=1024, last=1) | unlimited | "
        "at_least(least=0.5, strict=false, unbounded=false)";
    CHECK(kv::to_string(kv::parse("simlayer_kv(0.9)")) == spec);
    CHECK(kv::parse(spec) == kv::parse("simlayer_kv(threshold=0.9)"));
    says(parse_error, "parse: ")({
        {"simlayer_kv | budget(9)", "column 15 = budget, but at_least keeps however many entries there are"},
        {"simlayer_kv(threshold=-0.5)",
         "column 1: simlayer_kv: lazy_layers.threshold = -0.5, but a part of attention, 0 or more"},
        {"simlayer_kv(initial=-1)", "column 1: simlayer_kv: lazy_layers.initial = -1, but a count cannot be negative"},
        {"simlayer_kv(recent=-1)", "column 1: simlayer_kv: lazy_layers.recent = -1, but a count cannot be negative"},
        {"lazy_layers(last=0) | unlimited", "column 1: lazy_layers.last = 0, but at least one row observes"},
    });
  }
}

}  // namespace lazy_layers_test
