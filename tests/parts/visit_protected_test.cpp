// SPDX-License-Identifier: Apache-2.0
// The protected entries of a lane, visited, are those for which the protection returns true.
#include "support/test.hpp"

namespace visit_protected_test {

using namespace kvpolicy_test;

/// A lane of ascending positions, the end of its prompt and the classes of its tokens.
struct some_lane {
  std::vector<int> positions;
  std::vector<int> prompt_end;
  std::vector<int> classes;

  explicit some_lane(dice& random) : positions(random.subset(120, random.below(60))) {
    prompt_end = {random.below(130)};
    for (int p = 0; p < 128; ++p) classes.push_back(random.below(5));
  }
  [[nodiscard]] int count() const { return static_cast<int>(positions.size()); }
  /// Compares visited ordinals with those that are asked about.
  template <class Protect>
  bool agrees(Protect const& protect) const {
    static_assert(kv::detail::lists_protected<Protect>);
    kv::lane_entries const of{{}, count(), 12, positions.data()};
    std::set<int> visited;
    std::set<int> asked;
    kv::detail::visit_protected(protect, of, [&](int e) { visited.insert(e); });
    for (int e = 0; e < count(); ++e) {
      if (protect(kv::entry{{}, e, count(), positions[as_size(e)], 12})) asked.insert(e);
    }
    return visited == asked;
  }
};

/// A protection of an engine that visits an entry which the lane does not have.
struct wrong_visit {
  int ordinal = 0;
  bool operator()(kv::entry) const { return false; }
  template <class Visit>
  void visit_protected(kv::lane_entries const&, Visit const& visit) const {
    visit(ordinal);
  }
  friend bool operator==(wrong_visit const&, wrong_visit const&) = default;
};

TEST_SUITE("parts/visit_protected") {
  TEST_CASE("an entry that the lane does not have is refused, whatever a protection visits") {
    mock_cache cache({.bound = 40});
    kv::cache view = cache.view();
    kv::host_executor exec;
    for (int const wrong : {-1, 12, 1 << 30}) {
      kv::eviction<kv::random_scores, wrong_visit> const policy{.protect = {wrong}, .budget = {4}};
      auto [state, plan] = state_and_plan(exec, policy, view);
      for (int i = 0; i < view.lanes.size(); ++i) *view.lanes.count.row(view.lanes.at(i)) = 0;
      for (int s = 0; s < view.lanes.sequences; ++s) kv::append(exec, view, state, {s, 12, 0});
      CHECK(error_of([&] { kv::decide(exec, policy, kv::signals{view.lanes}, state, plan); }) ==
            "decide: visit_protected = " + std::to_string(wrong) + ", but the lane has 12 entries, numbered from 0");
    }
  }

  TEST_CASE("every shipped protection, two joined, and all that a policy by name forces") {
    holds("any lane", 300, [] {
      dice random(*rc::gen::arbitrary<std::uint64_t>());
      some_lane const lane(random);
      int const a = random.below(130);
      int const b = a + random.below(40);
      int const n = random.one_of<int>({0, 1, 4, 70});
      kv::position_span const span{a, b};
      kv::prompt const prompt{{lane.prompt_end.data()}};
      kv::marks const marked{random.below(5), {lane.classes.data()}};
      RC_ASSERT(lane.agrees(kv::nothing{}));
      RC_ASSERT(lane.agrees(kv::everything{}));
      RC_ASSERT(lane.agrees(kv::sinks{n}));
      RC_ASSERT(lane.agrees(kv::recent{n}));
      RC_ASSERT(lane.agrees(kv::safe{n, a}));
      RC_ASSERT(lane.agrees(span));
      RC_ASSERT(lane.agrees(prompt));
      RC_ASSERT(lane.agrees(marked));
      auto const joined = span | kv::recent{n} | marked | kv::position_span{b, b + n} | prompt;
      RC_ASSERT(lane.agrees(joined));
      kv::any_protection all(joined);
      all.add(kv::marks{random.below(5), {lane.classes.data()}});
      kv::forced_entries<true> forced(kv::recent_of_budget{-1, n});
      forced.join(all);
      RC_ASSERT(lane.agrees(forced));
      RC_ASSERT(lane.agrees(forced.ends));
    });
  }

  TEST_CASE("a forced entry whose score is NaN is kept and not counted, however many protect it") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 100});
    cache.put({}, up_to(100));
    for (int e = 0; e < 100; ++e) {
      bool const is_nan = e == 3 || e == 8 || e == 9 || e == 70;
      cache.write(of::keys, {}, e, {is_nan ? std::nan("") : e / 8.0, 0, 0, 0});
    }
    kv::cache const view = cache.view();
    kv::host_executor exec;
    auto const nan_scores = [&](auto const& policy) {
      auto [state, plan] = decided(exec, kv::signals{view.lanes, kv::keys_of(view)}, policy, view);
      std::vector<int> const kept = listed(plan.keep(), 0);
      for (int e = 5; e < 10; ++e) CHECK(std::find(kept.begin(), kept.end(), e) != kept.end());
      return plan.report().nan_scores;
    };
    auto const spans = kv::position_span{5, 9} | kv::position_span{8, 10};
    CHECK(nan_scores(kv::eviction{.score = kv::knorm{}, .protect = spans, .budget = kv::per_lane{12}}) == 2);
    CHECK(nan_scores(kv::parse("knorm | span(5, 9) | span(8, 10) | budget(12)")) == 2);
    CHECK(nan_scores(kv::parse("knorm | span(5, 9) | span(8, 10) | budget(12, scope=layer)")) == 2);
    CHECK(nan_scores(kv::eviction{.score = kv::knorm{},
                                  .protect = spans,
                                  .budget = kv::unlimited{},
                                  .pick = kv::at_least{-1.5f, false, true}}) == 2);
    CHECK(nan_scores(kv::parse("knorm | span(5, 9) | span(8, 10) | at_least(-1.5)")) == 2);
  }
}

}  // namespace visit_protected_test
