// SPDX-License-Identifier: Apache-2.0
// not_stale: entries in stale spans go, and with the pick at_least nothing else does.

#include "support/specs.hpp"

namespace {

using namespace kvpolicy_test;

/// A few spans of positions of each sequence, some of which are empty.
struct spans {
  std::vector<int> begin, end;
  int count;

  spans(int sequences, int each) : begin(as_size(sequences * each)), end(begin), count(each) {}
  [[nodiscard]] kv::stale_spans view() const { return {begin.data(), end.data(), count, count}; }
};

template <class Policy>
std::vector<std::vector<int>> kept_by(Policy const& policy, mock_cache& cache, kv::stale_spans const& stale) {
  kv::host_executor exec(2);
  auto [state, plan] = decided(exec, kv::signals{cache.lanes(), stale}, policy, cache.view());
  std::vector<std::vector<int>> kept;
  for (int i = 0; i < cache.lane_count(); ++i) kept.push_back(listed(plan.keep(), i));
  return kept;
}

TEST_SUITE("scorers/not_stale") {
  TEST_CASE("what is in a span of its sequence goes, but what is protected") {
    holds("stale entries", [] {
      mock_options const shape = any_mock(6);
      filled_cache cache(shape);
      spans stale(shape.sequences, *rc::gen::inRange(0, 4));
      for (std::size_t i = 0; i < stale.begin.size(); ++i) {
        stale.begin[i] = *rc::gen::inRange(0, 2 * shape.bound);
        stale.end[i] = *rc::gen::inRange(0, 2 * shape.bound);
      }
      int const sinks = *rc::gen::element(0, 0, 1, 4);
      kv::eviction const policy{
          .score = kv::not_stale{}, .protect = kv::sinks{sinks}, .budget = kv::unlimited{}, .pick = kv::at_least{0.5f}};
      auto const kept = kept_by(policy, cache, stale.view());
      for (int lane = 0; lane < cache.lane_count(); ++lane) {
        kv::lane const at = cache.lane_at(lane);
        std::vector<int> expected;
        for (int e = 0; e < cache.committed(at); ++e) {
          int const position = cache.lanes().position.row(at)[e];
          bool goes = false;
          for (int i = 0; i < stale.count; ++i) {
            auto const s = as_size(at.sequence * stale.count + i);
            goes = goes || (stale.begin[s] <= position && position < stale.end[s]);
          }
          if (!goes || position < sinks) expected.push_back(e);
        }
        RC_ASSERT(kept[as_size(lane)] == expected);
      }
    });
  }

  TEST_CASE("with a budget the stale entries go first") {
    mock_options shape;
    shape.bound = 8;
    mock_cache cache(shape);
    cache.put({}, {0, 1, 2, 3, 4, 5, 6, 7});
    spans stale(1, 1);
    stale.begin[0] = 1;
    stale.end[0] = 4;
    kv::eviction const policy{.score = kv::not_stale{}, .budget = kv::per_lane{6}};
    CHECK(kept_by(policy, cache, stale.view())[0] == std::vector{0, 1, 4, 5, 6, 7});
    CHECK(kept_by(kv::policies::side_quest(), cache, stale.view())[0] == std::vector{0, 4, 5, 6, 7});
    CHECK(kept_by(kv::policies::side_quest(), cache, {})[0] == std::vector{0, 1, 2, 3, 4, 5, 6, 7});
  }

  TEST_CASE("by name it decides as the typed policy, and prints in full") {
    std::string const spec = "not_stale | unlimited | at_least(least=0.5, strict=false, unbounded=false)";
    CHECK(kv::to_string(kv::parse("side_quest")) == spec);
    CHECK(kv::to_string(kv::policies::side_quest()) == spec);
    CHECK(kv::parse(spec) == kv::any_policy(kv::policies::side_quest()));
    CHECK(kv::to_string(kv::parse("external(name=mine) | sinks(2) | at_least(-3)")) ==
          "external(name=mine) | sinks(2) | unlimited | at_least(least=-3, strict=false, unbounded=true)");
    mock_options shape;
    shape.bound = 8;
    mock_cache cache(shape);
    cache.put({}, {0, 1, 2, 3, 4, 5, 6, 7});
    spans stale(1, 2);
    stale.begin = {1, 6};
    stale.end = {3, 99};
    kv::any_policy const named = kv::parse("side_quest | sinks(2)");
    kv::host_executor exec;
    auto [state, plan] = state_and_plan(exec, named, cache.view());
    kv::signals const in{cache.lanes(), stale.view()};
    CHECK(allocations_in([&] { kv::decide(exec, named, in, state, plan); }) == 0);
    CHECK(listed(plan.keep(), 0) == std::vector{0, 1, 3, 4, 5});
    CHECK(kv::explain(named, plan, 0, 2).find("dropped") != std::string::npos);
  }

  TEST_CASE("what is wrong is refused") {
    says(parse_error, "parse: ")({
        {"knorm | budget(3) | at_least(0.5)", "column 9 = budget, but at_least keeps however many entries there are"},
        {"side_quest | budget(9)", "column 14 = budget, but at_least keeps however many entries there are"},
        {"external | at_least(0.5) | at_least(0.5)", "column 28 = at_least, but there is one before, at column 12"},
        {"external | at_least(0.5) | put_first(3)", "column 28 = put_first, but at_least has no places"},
        {"side_quest | at_least(0.5)", "column 14 = at_least, but side_quest has one of its own"},
    });
    mock_options shape;
    mock_cache cache(shape);
    cache.put({}, {0});
    auto const refused = [&](kv::stale_spans const& stale) {
      return error_of([&] { (void)kept_by(kv::policies::side_quest(), cache, stale); });
    };
    int const one = 0;
    CHECK(refused({&one, &one, -1}) == "decide: stale_spans.count = -1, but a count cannot be negative");
    CHECK(refused({nullptr, &one, 1}) == "decide: stale_spans.begin = null, but each span begins at a position");
    CHECK(refused({&one, nullptr, 1}) == "decide: stale_spans.end = null, but each span ends at a position");
  }
}

}  // namespace
