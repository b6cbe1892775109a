// SPDX-License-Identifier: Apache-2.0
// Erased parts: a scorer, a stage, a pick or a trigger that is chosen at run time does what the typed one does.

#include "support/kept_lists.hpp"

namespace {

using namespace kvpolicy_test;

/// A stage of a program: the scores of another scorer, reversed.
template <kv::scorer Score>
struct reversed {
  Score score_of{};
  float by = 1;
  using wraps = Score;
  using needs = typename Score::needs;
  static constexpr auto name = "reversed";
  static constexpr auto fields() { return std::tuple{kv::field{"by", &reversed::by}}; }
  static constexpr kv::granularity decides = kv::decides_inside<Score>;

  struct negated {
    float by;
    float operator()(float old, kv::entry) const { return -by * old; }
  };
  template <kv::scorer Other>
  [[nodiscard]] reversed<Other> around(Other const& other) const {
    return {other, by};
  }
  void check(char const* call) const { kv::expects(by > 0, call, "reversed.by", by, "it is more than 0"); }
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    score_of.score(exec, in, out);
    kv::ops::map(exec, out, negated{by});
  }
  friend bool operator==(reversed const&, reversed const&) = default;
};

/// A stage of a program that reads a signal of its own: scores times the norm of the value.
template <kv::scorer Score>
struct by_value {
  Score score_of{};
  using wraps = Score;
  using needs = kv::also_needs<Score, kv::values>;
  static constexpr auto name = "by_value";
  static constexpr auto fields() { return std::tuple{}; }
  static constexpr kv::granularity decides = kv::decides_inside<Score>;
  template <kv::scorer Other>
  [[nodiscard]] by_value<Other> around(Other const& other) const {
    return {other};
  }
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    score_of.score(exec, in, out);
    kv::ops::row_norm(exec, in.template get<kv::values>(), kv::multiplied{}, out);
  }
  friend bool operator==(by_value const&, by_value const&) = default;
};

/// A protection that the library does not know: entries at odd positions.
struct odd {
  bool operator()(kv::entry at) const { return at.position % 2 == 1; }
};
/// A scorer that forces by it.
struct keeps_odd {
  static constexpr auto name = "keeps_odd";
  static constexpr auto fields() { return std::tuple{}; }
  using needs = kv::needs<>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  [[nodiscard]] odd forces() const { return {}; }
  void score(auto& exec, auto const&, kv::score_view const& out) const {
    kv::ops::map(exec, out, kv::streaming_llm::recency{});
  }
  friend bool operator==(keeps_odd const&, keeps_odd const&) = default;
};

/// Twelve entries in each of four lanes, with random keys.
struct four_lanes : lanes_of_random_keys {
  four_lanes() : lanes_of_random_keys({0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 13, 14}, 12, 7) {}
};

kv::registry with_mine() { return kv::shipped().add(keeps_odd{}).add_stage(reversed<kv::full>{}); }

}  // namespace

TEST_SUITE("by_name/erased_parts") {
  TEST_CASE("a stage of a program joins by one line, and prints after the scorer inside") {
    four_lanes lanes;
    kv::registry const mine = with_mine();
    auto const policy = mine.parse("knorm | reversed(by=2) | sinks(1) | budget(4)");
    kv::eviction const typed{.score = reversed<kv::knorm>{{}, 2}, .protect = kv::sinks{1}, .budget = kv::per_lane{4}};
    CHECK(kv::to_string(policy) == "knorm | reversed(by=2) | sinks(1) | budget(4)");
    CHECK(kv::to_string(typed) == kv::to_string(policy));
    CHECK(policy == kv::any_policy(typed));
    CHECK(policy == mine.parse(kv::to_string(policy)));
    CHECK(lanes.kept(policy) == lanes.kept(typed));
    CHECK(lanes.kept(policy) != lanes.kept(mine.parse("knorm | sinks(1) | budget(4)")));
    CHECK(error_of([&] { (void)mine.parse("knorm | reversed(by=0)"); }) ==
          "parse: column 9: reversed.by = 0, but it is more than 0");
    CHECK(error_of([&] { (void)with_mine().add_stage(reversed<kv::knorm>{}); }) ==
          "registry: name = reversed, but there is a stage of that name");
  }

  TEST_CASE("a stage may read a signal of its own, which is then needed by name") {
    four_lanes lanes;
    auto mine = with_mine();
    mine.add_stage(by_value<kv::full>{});
    auto const policy = mine.parse("knorm | by_value | reversed | budget(2)");
    kv::eviction const typed{.score = reversed<by_value<kv::knorm>>{}, .budget = kv::per_lane{2}};
    CHECK(policy.needs() == std::vector<std::string>{"keys", "values"});
    CHECK(kv::describe(policy).reads == std::vector<std::string>{"keys", "values"});
    CHECK(kv::describe(typed).reads == kv::describe(policy).reads);
    auto const both = kv::signals{lanes.view.lanes, kv::keys_of(lanes.view), kv::values_of(lanes.view)};
    auto const kept = [&](auto const& of) {
      auto [state, plan] = decided(lanes.exec, both, of, lanes.view);
      return listed(plan.keep(), 1);
    };
    CHECK(kept(policy) == kept(typed));
    auto [state, plan] = decided(lanes.exec, both, policy, lanes.view);
    CHECK(error_of([&] {
            kv::decide(lanes.exec, policy, kv::signals{lanes.view.lanes, kv::keys_of(lanes.view)}, state, plan);
          }) == "decide: signals = keys, but by_value needs signal values");
    CHECK(plan.keep().indices != nullptr);  // it was refused before the plan lost its decision
  }

  TEST_CASE("stages apply in the order in which they are written") {
    four_lanes lanes;
    kv::registry const mine = with_mine();
    auto const first = mine.parse("knorm | reversed | reduce_lanes(token, max) | budget(4)");
    auto const last = mine.parse("knorm | reduce_lanes(token, max) | reversed | budget(4)");
    auto const differ = [&](int budget) {
      auto const left = " | budget(" + std::to_string(budget) + ")";
      return lanes.kept(mine.parse("knorm | reversed | reduce_lanes(token, max)" + left)) !=
             lanes.kept(mine.parse("knorm | reduce_lanes(token, max) | reversed" + left));
    };
    CHECK(kv::to_string(last) == "knorm | reduce_lanes(token, max) | reversed(by=1) | budget(4)");
    CHECK(last.decides() == kv::granularity::sequence);
    CHECK(lanes.kept(first) == lanes.kept(kv::eviction{.score = kv::reduce_lanes{.score_of = reversed<kv::knorm>{},
                                                                                 .decides = kv::granularity::sequence,
                                                                                 .how = kv::reduction::max},
                                                       .budget = kv::per_lane{4}}));
    CHECK((differ(1) || differ(2) || differ(3) || differ(5) || differ(7) || differ(9)));
  }

  TEST_CASE("entries that a scorer of a program forces are kept, beside those of the policy") {
    four_lanes lanes;
    kv::registry const mine = with_mine();
    auto const policy = mine.parse("keeps_odd | sinks(1) | budget(2)");
    kv::eviction const typed{.score = keeps_odd{}, .protect = kv::sinks{1}, .budget = kv::per_lane{2}};
    CHECK(lanes.kept(policy) == lanes.kept(typed));
    CHECK(lanes.kept(policy)[0] == std::vector<int>{0, 1, 3, 5, 6, 8, 10});
  }

  TEST_CASE("every pick and trigger by name decides as the typed one") {
    four_lanes lanes;
    auto const alike = [&](std::string const& spec, auto const& typed) {
      kv::any_policy const read = kv::parse(spec);
      CHECK(read == kv::any_policy(typed));
      CHECK(kv::to_string(read) == spec);
      CHECK(lanes.kept(read) == lanes.kept(typed));
      CHECK(kv::due(read, lanes.view) == kv::due(typed, lanes.view));
    };
    using knorm_with = kv::eviction<kv::knorm, kv::sinks, kv::per_lane, kv::lowest_one>;
    alike("knorm | sinks(2) | budget(4) | lowest_one", knorm_with{{}, {2}, {4}});
    alike("knorm | sinks(2) | budget(12) | lowest_one", knorm_with{{}, {2}, {12}});
    alike("knorm | sinks(0) | unlimited | at_least(least=-1.5, strict=false, unbounded=true)",
          kv::eviction<kv::knorm, kv::sinks, kv::unlimited, kv::at_least>{{}, {0}, {}, {-1.5f, false, true}});
    for (int entries : {8, 12, 11}) {
      alike("knorm | sinks(0) | budget(4) | over_total(" + std::to_string(entries) + ")",
            kv::eviction<kv::knorm, kv::sinks, kv::per_lane, kv::top, kv::over_total>{{}, {0}, {4}, {}, {entries}});
      alike(
          "knorm | sinks(0) | budget(4) | full_buffer(" + std::to_string(entries - 3) + ")",
          kv::eviction<kv::knorm, kv::sinks, kv::per_lane, kv::top, kv::full_buffer>{{}, {0}, {4}, {}, {entries - 3}});
    }
    CHECK(error_of([] { (void)kv::parse("knorm | put_first(3) | lowest_one"); }) ==
          "parse: column 9 = put_first, but lowest_one has no places");
    CHECK(error_of([] { (void)kv::parse("knorm | over_total(3) | over_budget"); }) ==
          "parse: column 25 = over_budget, but there is one before, at column 9");
  }

  TEST_CASE("an erased scorer is a part of typed policies") {
    four_lanes lanes;
    kv::eviction const typed{.score = kv::knorm{}, .budget = kv::per_lane{5}};
    kv::eviction const mixed{.score = kv::any_scorer(kv::knorm{}), .budget = kv::per_lane{5}};
    auto const in = [&](auto const& policy) {
      auto [state, plan] = state_and_plan(lanes.exec, policy, lanes.view);
      kv::any_signals signals(lanes.view.lanes);
      kv::keys const keys = kv::keys_of(lanes.view);
      signals.add(keys);
      kv::detail::decide_given(lanes.exec, policy, signals, state, plan);
      return listed(plan.keep(), 1);
    };
    CHECK(in(mixed) == lanes.kept(typed)[1]);
  }

  TEST_CASE("a policy by name is described as the typed one") {
    auto const typed = kv::policies::snapkv({.budget = 64, .sinks = 4});
    kv::any_policy const erased = typed;
    CHECK(kv::print(kv::describe(erased)) == kv::print(kv::describe(typed)));
    CHECK(erased.needs() == std::vector<std::string>{"queries", "keys"});
  }

  TEST_CASE("when a policy decides is data") {
    CHECK(kv::parse("snapkv").when == kv::phase::prefill);
    CHECK(kv::parse("h2o").when == kv::phase::step);
    CHECK(kv::parse("sir_llm").when == kv::phase::turn);
    CHECK(kv::parse("locret").when == kv::phase::chunk);
    CHECK(kv::to_string(kv::parse("knorm | budget(3) | when(turn)")) == "knorm | budget(3) | when(turn)");
    CHECK(kv::parse("snapkv | when(prefill)") == kv::parse("snapkv"));
    CHECK(!(kv::parse("snapkv | when(step)") == kv::parse("snapkv")));
    CHECK(error_of([] { (void)kv::parse("knorm | when(never)"); }) ==
          "parse: column 14 = never, but when's phase is step, prefill, turn, chunk or layer");
    CHECK(error_of([] { (void)kv::parse("knorm | when(step) | when(turn)"); }) ==
          "parse: column 22 = when, but there is one before, at column 9");
  }
}
