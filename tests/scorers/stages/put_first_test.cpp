// SPDX-License-Identifier: Apache-2.0
// Decisions in two steps: the best by one score first, the rest by another.
#include "support/scored_layer.hpp"
#include "support/specs.hpp"

namespace {

using namespace kvpolicy_test;

struct two_lanes : scored_layer {
  using scored_layer::scored_layer;

  /// The kept ordinals of each lane, and the scores of the plan.
  template <class Policy>
  std::pair<std::vector<std::set<int>>, std::vector<float>> decide(Policy const& policy) {
    kv::host_executor exec(2);
    auto [state, plan] = decided(exec, kv::signals{cache.lanes, given()}, policy, cache);
    std::pair<std::vector<std::set<int>>, std::vector<float>> made;
    for (int s = 0; s < 2; ++s) {
      auto const listed = plan.keep().listed(s);
      made.first.emplace_back(listed.begin(), listed.end());
      float const* const row = plan.scores(cache.lanes).row(s);
      made.second.insert(made.second.end(), row, row + entries);
    }
    return made;
  }
};

TEST_SUITE("scorers/stages/put_first") {
  TEST_CASE("SirLLM's worked numbers: surprise puts 0 and 3 first, and the newest fills up") {
    two_lanes made(5);
    for (int lane : {0, 1}) {
      float const decayed[] = {1.8f, 0.45f, 1.35f, 1.6f, 1.0f};
      std::copy_n(decayed, 5, made.scores.begin() + 5 * lane);
    }
    kv::eviction const policy{.score = kv::put_first{.score_of = kv::external{}, .tokens = 2},
                              .budget = kv::per_lane{3}};
    auto const [kept, scores] = made.decide(policy);
    CHECK(kept[0] == std::set<int>{0, 3, 4});
    float const first = std::numeric_limits<float>::infinity();
    CHECK(std::vector<float>(scores.begin(), scores.begin() + 5) == std::vector<float>{first, 1, 2, first, 4});
  }

  TEST_CASE("NACL's worked numbers: three of four places go to the best scores, and one to a number of the seed") {
    two_lanes made(5);
    for (int lane : {0, 1}) {
      float const proxy[] = {0.4f, 0.1f, 0.3f, 0.05f, 0.2f};
      std::copy_n(proxy, 5, made.scores.begin() + 5 * lane);
    }
    std::set<int> others;
    for (std::uint64_t seed = 0; seed < 16; ++seed) {
      kv::eviction const policy{
          .score =
              kv::put_first{.score_of = kv::external{}, .part = 0.75, .then = kv::rest_order::random, .seed = seed},
          .budget = kv::per_lane{4}};
      auto const kept = made.decide(policy).first;
      for (int lane : {0, 1}) {
        kv::random_scores::uniform const uniform{seed};
        auto const number = [&](int e) { return uniform(0, {{0, 0, lane}, e, 5, e, 0}); };
        int const other = number(1) >= number(3) ? 1 : 3;
        CHECK(kept[as_size(lane)] == std::set<int>{0, 2, 4, other});
        others.insert(other);
      }
    }
    CHECK(others == std::set<int>{1, 3});
  }

  TEST_CASE("the best get their places, at most the free ones, and the rest is by recency or at random") {
    holds("any scores", 200, [] {
      two_lanes made(*rc::gen::inRange(1, 60));
      int const sinks = *rc::gen::inRange(0, 6);
      int const budget = *rc::gen::inRange(0, made.entries + 1);
      bool const by_part = any_bool();
      int const tokens = *rc::gen::inRange(0, 20);
      double const part = *rc::gen::element(0.1, 0.25, 0.5, 0.75, 1.0);
      bool const by_chance = any_bool();
      for (float& each : made.scores) {
        each = *rc::gen::inRange(0, 9) == 0 ? NAN : static_cast<float>(*rc::gen::inRange(0, 12));
      }
      kv::eviction const policy{
          .score = kv::put_first{.score_of = kv::external{},
                                 .tokens = by_part ? 0 : tokens,
                                 .part = by_part ? part : 0,
                                 .then = by_chance ? kv::rest_order::random : kv::rest_order::recency},
          .protect = kv::sinks{sinks},
          .budget = kv::per_lane{budget}};
      auto const kept = made.decide(policy).first;
      for (int lane : {0, 1}) {
        int const forced = std::min(sinks, made.entries);
        int const free = std::max(0, budget - forced);
        int const first = by_part ? free - static_cast<int>((1 - part) * free + 1e-9) : std::min(tokens, free);
        std::vector<int> order;
        for (int e = forced; e < made.entries; ++e) order.push_back(e);
        auto const of = [&](int e) {
          float const one = made.scores[as_size(lane * made.entries + e)];
          return std::isnan(one) ? -1.0f : one;
        };
        std::sort(order.begin(), order.end(), [&](int a, int b) { return of(a) != of(b) ? of(a) > of(b) : a < b; });
        auto const begin = order.begin() + std::min<std::ptrdiff_t>(first, std::ssize(order));
        kv::random_scores::uniform const uniform{42};
        auto const then = [&](int e) {
          return by_chance ? uniform(0, {{0, 0, lane}, e, made.entries, e, 0}) : static_cast<float>(e);
        };
        std::sort(begin, order.end(), [&](int a, int b) { return then(a) != then(b) ? then(a) > then(b) : a < b; });
        std::set<int> expected;
        for (int e = 0; e < forced; ++e) expected.insert(e);
        for (int i = 0; i < std::min<int>(free, static_cast<int>(order.size())); ++i) {
          expected.insert(order[as_size(i)]);
        }
        if (made.entries <= budget) continue;  // nothing is dropped
        RC_ASSERT(kept[as_size(lane)] == expected);
      }
    });
  }

  TEST_CASE("systems are names for specs") {
    CHECK(kv::to_string(kv::parse("nacl | budget(512)")) ==
          "snapkv(window=32, pool=none, rows=sum, group=mean) | put_first(part=0.75, then=random) | budget(512)");
    CHECK(kv::to_string(kv::parse("sir_llm(entropy=9, sinks=2) | budget(99)")) ==
          "carried(name=surprise, decay=1) | put_first(tokens=9, then=recency) | reduce_lanes(token, max) | sinks(2) | "
          "budget(99) | when(turn)");
    CHECK(kv::to_string(kv::parse("pyramid_kv(window=8) | budget(512)")) ==
          "snapkv(window=8, pool=max:7, rows=sum, group=mean) | budget(512, by=ramp, beta=20)");
    CHECK(kv::parse("pyramid_kv | sinks(0) | budget(9)") == kv::any_policy(kv::policies::pyramid_kv({.budget = 9})));
    CHECK(kv::to_string(kv::parse("fast_kvzip | budget(9)")) ==
          "fast_kvzip(name=fast_kvzip, sinks=4, window=-1) | budget(9, scope=global)");
    for (char const* const spec :
         {"nacl(random=0.3, seed=7) | budget(5)", "sir_llm(decay=0.5) | budget(3)",
          "dapq(recent=3) | budget(ratio=0.25)", "pyramid_kv(rule=kvpress) | budget(ratio=0.5)",
          "lookahead_kv(pool=avg:3) | sinks(2) | budget(7, scope=layer)",
          "carried(name=x) | put_first(tokens=3) | safe(4, 8) | budget(9)", "fast_kvzip | budget(9, scope=layer)",
          "fast_kvzip | budget(9, scope=lane)", "fast_kvzip | unlimited",
          "snapkv | budget(64, by=ramp, beta=3.5, rule=factory)"}) {
      kv::any_policy const policy = kv::parse(spec);
      CHECK(kv::parse(kv::to_string(policy)) == policy);
    }
  }

  TEST_CASE("10,000 random specs of systems, stages and shares are read back equal") {
    dice random(20261123);
    int const shares[] = {1, 2, 3, 4};
    kv::registry known = kv::shipped();
    known.table("profile", {shares, 0, 2, 1});
    auto const count = [&](int most) { return std::to_string(random.below(most)); };
    auto const one_of = [&](std::vector<std::string> const& all) { return random.one_of(all); };
    for (int i = 0; i < 10000; ++i) {
      std::string const reduction = one_of({"sum", "mean", "max"});
      std::string const number = one_of({"0", "0.1", "0.25", "0.333", "1"});
      std::string const pool = one_of({"none", "max:7", "avg:3", "max:1"});
      std::string spec = one_of(
          {"pyramid_kv(window=" + std::to_string(1 + random.below(64)) + ", pool=" + pool +
               ", beta=" + one_of({"1", "2.5", "20"}) + ", rule=" + one_of({"exact", "kvpress", "factory"}) + ")",
           "nacl(random=" + number + ", group=" + reduction + ", seed=" + count(99) + ")",
           "sir_llm(entropy=" + count(2000) + ", sinks=" + count(9) + ", decay=" + one_of({"1", "0.5"}) + ")",
           "locret(stabilizers=" + count(3000) + ")", "observed_attention(group=" + reduction + ")",
           "fast_kvzip(window=" + one_of({"-1", "0", "77"}) + ", sinks=" + count(9) + ")",
           "lookahead_kv(recent=" + count(99) + ", pool=" + pool + ")", "dapq(group=" + reduction + ")",
           "lu_kv(scores=mine, table=profile)", "carried(name=x)", "carried(name=x)", "snapkv(pool=" + pool + ")"});
      bool const stages = spec[0] == 'c' || (spec[0] == 's' && spec[1] == 'n');
      bool const shares_itself = spec[0] == 'p' || spec.starts_with("lu_kv");
      if (stages && random.chance(50)) {
        spec += " | put_first(" + one_of({"tokens=" + count(99), "part=" + number}) +
                ", then=" + one_of({"recency", "random"}) + ")";
      }
      if (random.chance(50)) spec += " | safe(" + count(9) + ", " + count(99) + ")";
      std::string const amount = one_of({count(5000), "ratio=" + number, "bytes=" + count(1 << 30)});
      std::string const by =
          one_of({"", ", by=ramp, beta=3.5", ", by=table, table=profile", ", scope=layer, floor=0.25"});
      bool const by_threshold =
          stages && spec[0] == 'c' && spec.find("put_first") == std::string::npos && random.chance(50);
      if (by_threshold) spec += " | at_least(" + one_of({"-4", number, "1e30, true", "0.5, false, false"}) + ")";
      if (!by_threshold) spec += " | budget(" + amount + (shares_itself || spec.starts_with("sir_llm") ? "" : by) + ")";
      if (random.chance(30)) spec += " | over_budget(" + count(500) + ")";
      if (random.chance(5))
        spec = one_of({"side_quest", "side_quest | sinks(3)", "not_stale | budget(" + count(99) + ")"});
      CAPTURE(spec);
      kv::any_policy const policy = kv::parse((random.chance(50) ? "evict: " : "") + spec, known);
      std::string const printed = kv::to_string(policy);
      REQUIRE(kv::parse(printed, known) == policy);
      REQUIRE(kv::to_string(kv::parse(printed, known)) == printed);
    }
  }

  TEST_CASE("what a spec cannot say is refused with its column") {
    CHECK(kv::parse("evict: knorm | budget(3)") == kv::parse("knorm | budget(3)"));
    CHECK(parse_error(" admit: knorm") ==
          "parse: column 2 = admit, but an eviction has the section evict: alone, and a cache policy all");
    CHECK(parse_error("intent_kv | put_first(3)").starts_with("parse: column 13: put_first.score_of = intent_kv("));
    CHECK(parse_error("intent_kv | put_first(3)").ends_with("and put_first needs a score of every entry"));
    says(parse_error, "parse: ")({
        {"snapkv | put_first(3, 0.5)", "column 10: put_first.part = 0.5, but it says how many once: tokens or part"},
        {"snapkv | budget(3, beta=2)", "column 20 = beta, but only by=ramp has it"},
        {"snapkv | budget(3, by=ramp, scope=layer)",
         "column 10 = budget, but only lanes that share with nobody have shares that differ"},
        {"pyramid_kv(beta=0.5) | budget(3)",
         "column 1: pyramid_kv.beta = 0.5, but the last layer's share is 1 / beta of the average, beta >= 1"},
        {"lu_kv(sinks=-1) | budget(3)", "column 1: lu_kv.sinks = -1, but a count cannot be negative"},
        {"lu_kv(scores=x) | budget(3)",
         "column 1 = lu_kv, but its table is lu_kv, and a table is given to the registry by its name"},
        {"pyramid_kv | reduce_lanes(token, sum)",
         "column 1 = pyramid_kv, but layers that decide together have one budget"},
        {"sir_llm|safe|safe|safe|safe|safe|safe|safe|safe",
         "column 1 = sir_llm, but at most eight protections are joined, its own included"},
        {"nacl(random=2)", "column 1: nacl.random = 2, but a part of the free places, 0 to 1"},
        {"fast_kvzip(window=-2)", "column 1: fast_kvzip.window = -2, but a count, or -1 for 2 % of the entries"},
    });
  }
}

}  // namespace
