// SPDX-License-Identifier: Apache-2.0
// Decisions about whole blocks of entries, and the pick that drops a part of them.
#include "reference/blocks.hpp"

#include "support/scored_layer.hpp"
#include "support/specs.hpp"

namespace {

using namespace kvpolicy_test;

/// Its entries have classes, too.
struct classed_layer : scored_layer {
  std::vector<int> classes;

  explicit classed_layer(int count) : scored_layer(count), classes(as_size(count)) {}
  [[nodiscard]] kv::by_lane<int const> class_table() const { return {classes.data(), 0, 0, 0}; }
  [[nodiscard]] double score(int lane, int e) const { return double{scores[as_size(lane * entries + e)]}; }
  [[nodiscard]] std::vector<double> sums() const {
    std::vector<double> made;
    for (int e = 0; e < entries; ++e) made.push_back(score(0, e) + score(1, e));
    return made;
  }

  /// The kept ordinals of each segment.
  template <class Policy>
  std::vector<std::set<int>> decide(Policy const& policy, int over_budget = -1) {
    kv::host_executor exec(2);
    auto [state, plan] = decided(exec, kv::signals{cache.lanes, given()}, policy, cache);
    if (over_budget >= 0) CHECK(plan.report().over_budget == over_budget);
    std::vector<std::set<int>> made;
    for (int s = 0; s < plan.keep().segments(); ++s) {
      auto const listed = plan.keep().listed(s);
      made.emplace_back(listed.begin(), listed.end());
    }
    return made;
  }
};

/// A layer whose scores are eighths, which have exact sums in any order.
classed_layer any_layer() {
  classed_layer made(*rc::gen::inRange(1, 70));
  bool const has_nan = *rc::gen::inRange(0, 4) == 0;
  for (float& each : made.scores) {
    each = static_cast<float>(*rc::gen::inRange(0, 12)) / 8;
    if (has_nan && *rc::gen::inRange(0, 20) == 0) each = NAN;
  }
  return made;
}

constexpr int sizes[] = {1, 2, 4, 8, 16, 32, 64};  // by which a mean is exact, too

TEST_SUITE("scorers/stages/blocks") {
  TEST_CASE("worked numbers: the best block of two stays, where the best two entries are of two blocks") {
    classed_layer made(5);
    for (int lane : {0, 1}) std::copy_n(std::data({0.9f, 0.1f, 0.4f, 0.5f, 0.2f}), 5, made.scores.begin() + 5 * lane);
    kv::blocks const score{.score_of = kv::external{}, .size = 2};
    kv::eviction const half{.score = score, .budget = kv::drop_ratio{0.5}};
    CHECK(made.decide(half)[0] == std::set<int>{0, 1});
    CHECK(made.decide(kv::eviction{.score = kv::external{}, .budget = kv::per_lane{2}})[0] == std::set<int>{0, 3});
    CHECK(made.decide(kv::eviction{.score = score, .budget = kv::per_lane{4}})[0] == std::set<int>{0, 1, 2, 3});
  }

  TEST_CASE("a forced entry forces its block, and the shorter last block counts as one") {
    classed_layer made(10);
    for (int e = 0; e < 20; ++e) made.scores[as_size(e)] = static_cast<float>(e % 10);
    kv::blocks const score{.score_of = kv::external{}, .size = 4};
    auto const kept = [&](auto const& protect, int budget) {
      return made.decide(kv::eviction{.score = score, .protect = protect, .budget = kv::per_lane{budget}})[0];
    };
    CHECK(kept(kv::nothing{}, 9) == std::set<int>{4, 5, 6, 7, 8, 9});
    CHECK(kept(kv::nothing{}, 7) == std::set<int>{8, 9});
    CHECK(kept(kv::sinks{1}, 9) == std::set<int>{0, 1, 2, 3, 8, 9});
    CHECK(kept(kv::position_span{5, 6}, 5) == std::set<int>{4, 5, 6, 7});
    CHECK(kept(kv::nothing{}, 3) == std::set<int>{8, 9});  // at least one block
    CHECK(kept(kv::nothing{}, 10).size() == 10);
    CHECK(made.decide(kv::eviction{.score = score, .protect = kv::safe{1, 1}, .budget = kv::per_lane{4}}, 2)[0] ==
          std::set<int>{0, 1, 2, 3, 8, 9});  // two lanes have more forced blocks than one
  }

  TEST_CASE("what stays is that of the reference, whatever is forced") {
    holds("any lanes", 400, [] {
      classed_layer made = any_layer();
      int const size = *rc::gen::elementOf(std::vector<int>(std::begin(sizes), std::end(sizes)));
      int const sinks = *rc::gen::inRange(0, 9), recent = *rc::gen::inRange(0, 9);
      bool const by_class = any_bool(), of_layer = any_bool();
      bool const by_ratio = any_bool();
      int const budget = *rc::gen::inRange(0, made.entries + 2);
      double const ratio = *rc::gen::element(0.1, 0.25, 0.5, 0.9, 0.99);
      for (int& each : made.classes) each = *rc::gen::inRange(0, 30) == 0 ? 1 : 0;
      auto const expected = [&](std::vector<double> const& scores) {
        reference::lane_of_blocks lane{scores, {}, size, budget, {}, {}};
        if (by_ratio) lane.ratio = ratio;
        for (int e = 0; e < made.entries; ++e) {
          lane.forced.push_back(by_class ? made.classes[as_size(e)] == 1 : e < sinks || e >= made.entries - recent);
        }
        return lane.kept();
      };
      kv::any_budget const limit =
          by_ratio ? kv::any_budget(kv::drop_ratio{ratio, kv::rounding::exact}) : kv::any_budget(kv::per_lane{budget});
      kv::any_protection protect;
      if (by_class) {
        protect = kv::marks{1, made.class_table()};
      } else {
        protect = kv::safe{sinks, recent};
      }
      auto const check = [&](auto const& score, std::vector<std::vector<double>> const& rows) {
        auto policy = kv::any_policy(kv::any_scorer(score), protect, limit, kv::top{}, kv::over_budget{});
        policy.when = kv::phase::prefill;  // or a ratio is one of the tokens that the sequence has had
        auto const kept = made.decide(policy);
        for (std::size_t s = 0; s < rows.size(); ++s) RC_ASSERT(kept[s] == expected(rows[s]));
      };
      if (of_layer) {
        kv::reduce_lanes const sum{kv::external{}, kv::granularity::layer, kv::reduction::sum};
        check(kv::blocks{.score_of = sum, .size = size}, {made.sums()});
      } else {
        check(kv::blocks{.score_of = kv::external{}, .size = size}, {made.of_lane(0), made.of_lane(1)});
      }
    });
  }

  TEST_CASE("a typed policy decides as one by name") {
    holds("any lanes", 100, [] {
      classed_layer made = any_layer();
      int const size = *rc::gen::inRange(1, 12), budget = *rc::gen::inRange(0, made.entries + 1);
      kv::eviction const typed{.score = kv::blocks{.score_of = kv::external{}, .size = size},
                               .protect = kv::safe{2, 3},
                               .budget = kv::per_lane{budget}};
      RC_ASSERT(made.decide(typed) == made.decide(kv::any_policy(typed)));
      kv::eviction const part{.score = kv::blocks{.score_of = kv::external{}, .size = size},
                              .protect = kv::recent{1},
                              .budget = kv::unlimited{},
                              .pick = kv::lowest{0.3}};
      RC_ASSERT(made.decide(part) == made.decide(kv::any_policy(part)));
    });
  }

  TEST_CASE("a part of the whole blocks that compete goes; a shorter one stays") {
    holds("any lanes", 300, [] {
      classed_layer made = any_layer();
      int const size = *rc::gen::elementOf(std::vector<int>(std::begin(sizes), std::end(sizes)));
      int const sinks = *rc::gen::inRange(0, 9);
      double const part = *rc::gen::element(0.0, 0.1, 0.29, 0.3, 0.5, 0.7, 1.0);
      kv::eviction const policy{.score = kv::blocks{.score_of = kv::external{}, .size = size},
                                .protect = kv::sinks{sinks},
                                .budget = kv::unlimited{},
                                .pick = kv::lowest{part}};
      auto const kept = made.decide(policy);
      for (int lane : {0, 1}) {
        reference::lane_of_blocks of{made.of_lane(lane), {}, size, 0, {}, part};
        for (int e = 0; e < made.entries; ++e) of.forced.push_back(e < sinks);
        RC_ASSERT(kept[as_size(lane)] == of.kept());
      }
    });
  }

  TEST_CASE("a part goes when its trigger fires, and with a budget only above it") {
    classed_layer made(8);
    for (int e = 0; e < 16; ++e) made.scores[as_size(e)] = static_cast<float>(e % 8);
    kv::eviction policy{.score = kv::external{}, .budget = kv::per_lane{8}, .pick = kv::lowest{0.5}};
    CHECK(made.decide(policy)[0].size() == 8);
    CHECK(!kv::due(policy, made.cache));
    policy.budget = kv::per_lane{7};
    CHECK(made.decide(policy)[0] == std::set<int>{4, 5, 6, 7});
    CHECK(kv::due(policy, made.cache));
    auto const each = [&](int steps) {
      kv::eviction const timed{
          .score = kv::external{}, .budget = kv::unlimited{}, .pick = kv::lowest{0.25}, .trigger = kv::every{steps}};
      CHECK(kv::due(timed, made.cache) == (8 % steps == 0));
      return made.decide(timed)[0].size();
    };
    CHECK(each(4) == 6);
    CHECK(each(3) == 8);
  }

  TEST_CASE("blocks that are longer than any lane") {
    classed_layer made(9);
    for (int e = 0; e < 18; ++e) made.scores[as_size(e)] = static_cast<float>(e % 9);
    int const longest = std::numeric_limits<int>::max();
    kv::blocks const score{.score_of = kv::external{}, .size = longest};
    CHECK(made.decide(kv::eviction{.score = score, .protect = kv::sinks{2}, .budget = kv::per_lane{4}})[0] ==
          std::set<int>{0, 1, 7, 8});
    kv::eviction const part{.score = score, .budget = kv::unlimited{}, .pick = kv::lowest{1}};
    CHECK(made.decide(part)[0].size() == 9);
    for (bool const adaptive : {false, true}) {  // its last block is always forced
      kv::openvino const whole{.start = longest, .recent = longest, .block = longest, .adaptive = adaptive, .crush = 1};
      kv::host_executor exec;
      kv::eviction const policy{.score = whole, .budget = kv::per_lane{4}};
      auto [state, plan] = state_and_plan(exec, policy, made.cache);
      kv::attention_mass const mass{made.given().score};
      kv::decide(exec, policy, kv::signals{made.cache.lanes, kv::keys_of(made.cache), mass}, state, plan);
      CHECK(listed(plan.keep(), 0).size() == 9);
    }
  }

  TEST_CASE("an explanation says which blocks are forced, the shorter last one beside lowest among them") {
    classed_layer made(10);
    for (int e = 0; e < 20; ++e) made.scores[as_size(e)] = static_cast<float>(e % 10);
    kv::host_executor exec;
    kv::eviction const policy{.score = kv::blocks{.score_of = kv::external{}, .size = 4},
                              .protect = kv::position_span{5, 6},
                              .budget = kv::unlimited{},
                              .pick = kv::lowest{0.5}};
    auto [state, plan] = decided(exec, kv::signals{made.cache.lanes, made.given()}, policy, made.cache);
    std::string forced;
    for (int e = 0; e < 10; ++e) forced += kv::forces(policy, plan, 0, e) ? '1' : '0';
    CHECK(forced == "0000111111");
  }

  TEST_CASE("specs print and read back") {
    CHECK(kv::to_string(kv::parse("external | reduce_lanes(layer, sum) | blocks(20, mean) | budget(512)")) ==
          "external(name=) | reduce_lanes(layer, sum) | blocks(size=20, how=mean) | budget(512)");
    for (char const* const spec : {"external | blocks | budget(512)", "snapkv | blocks(8, max) | budget(ratio=0.5)",
                                   "external | blocks(4) | lowest(0.25) | every(16)", "knorm | lowest(part=1)"}) {
      kv::any_policy const policy = kv::parse(spec);
      CHECK(kv::parse(kv::to_string(policy)) == policy);
    }
  }

  TEST_CASE("blocks that cannot be are refused") {
    says(parse_error, "parse: ")({
        {"knorm | blocks(0) | budget(8)", "column 9: blocks.size = 0, but a block has at least one entry"},
        {"knorm | blocks(4, last) | budget(8)", "column 9: blocks.how = last, but a block is more than its last entry"},
        {"knorm | lowest(1.5)", "column 9: lowest.part = 1.5, but a part is dropped, 0 to 1"},
        {"knorm | lowest(0.5) | budget(8)",
         "column 23 = budget, but lowest drops a part of the entries, whatever the budget"},
        {"knorm | put_first(tokens=3) | blocks(4) | budget(8)",
         "column 31: blocks.score_of = knorm | put_first(tokens=3, then=recency), but it puts single entries first"},
    });
    CHECK_THROWS_WITH_AS(
        (void)kv::parse_cache_policy("admit: openvino | window(8)"),
        "parse: column 8 = openvino, but it is of blocks, and an admission asks about each entry alone",
        kv::invalid_argument);
    says(parse_error, "parse: ")({
        {"knorm | blocks(4) | put_first(tokens=3) | budget(8)",
         "column 21: put_first.score_of = knorm | blocks(size=4, how=mean), but its entries are in blocks already"},
        {"knorm | put_first(tokens=3) | lowest(0.5)", "column 9 = put_first, but lowest has no places"},
    });
    classed_layer made(9);
    kv::eviction const shared{.score = kv::blocks{.score_of = kv::external{}, .size = 4}, .budget = kv::per_layer{4}};
    CHECK_THROWS_WITH_AS(made.decide(shared),
                         "decide: budget.scope = layer, but where blocks or a part of the entries go, every lane has a "
                         "budget of its own",
                         kv::invalid_argument);
  }
}

}  // namespace
