// SPDX-License-Identifier: Apache-2.0
// Frozen scores: a scorer runs when the policy observes, and its numbers move with their entries.
#include "support/kept_lists.hpp"

namespace freeze_test {

using namespace kvpolicy_test;

/// Three query rows of four heads that belong to no token.
struct outside_rows {
  std::vector<float> rows;
  explicit outside_rows(std::uint64_t seed) : rows(2 * 4 * 3 * 8) {
    dice random(seed);
    for (float& each : rows) each = static_cast<float>(random.below(33) - 16) / 8;
  }
  [[nodiscard]] kv::external_queries view() const {
    kv::external_queries made;
    made.base = reinterpret_cast<std::byte const*>(rows.data());
    made.element = kv::codec::f32;
    made.heads = 4;
    made.rows = 3;
    made.dims = 8;
    made.row = 8 * sizeof(float);
    made.head = 3 * made.row;
    made.layer = 4 * made.head;
    made.sequence = 2 * made.layer;
    return made;
  }
};

/// Two layers of two lanes of 20 entries with random keys.
struct four_lanes : lanes_of_random_keys {
  four_lanes() : lanes_of_random_keys(up_to(20), 24, 5) {}
  /// The scores of a policy's decision with these signals, by the position of the entry, lane after lane.
  template <class Policy, class Signals>
  std::vector<std::map<int, float>> scores(Policy const& policy, Signals const& in,
                                           kv::state<kv::host_executor> const& state) {
    auto plan = kv::make_plan(exec, policy, view);
    kv::decide(exec, policy, in, state, plan);
    std::vector<std::map<int, float>> made;
    for (int i = 0; i < view.lanes.size(); ++i) {
      kv::lane const one = view.lanes.at(i);
      auto& of = made.emplace_back();
      for (int e = 0; e < view.lanes.committed(one); ++e) of[view.lanes.position.row(one)[e]] = plan.score(i, e);
    }
    return made;
  }
  [[nodiscard]] auto with(outside_rows const& rows) const {
    return kv::signals{view.lanes, kv::keys_of(view), rows.view()};
  }
  /// What the scorer itself gives with some rows.
  std::vector<std::map<int, float>> direct(outside_rows const& rows) {
    kv::eviction const policy{.score = kv::lookahead_kv{.recent = 2}, .budget = kv::per_lane{8}};
    auto const state = kv::make_state(exec, policy, view);
    return scores(policy, with(rows), state);
  }
};

TEST_SUITE("recorders/freeze") {
  TEST_CASE("a decision reads the scores of the observe, and needs none of its signals") {
    four_lanes lanes;
    outside_rows const rows(1);
    auto const expected = lanes.direct(rows);
    kv::eviction const policy{.score = kv::frozen<kv::lookahead_kv>{{.recent = 2}}, .budget = kv::per_lane{8}};
    auto state = kv::make_state(lanes.exec, policy, lanes.view);
    kv::observe(lanes.exec, policy, lanes.with(rows), state);
    CHECK(lanes.scores(policy, kv::signals{lanes.view.lanes}, state) == expected);
    CHECK(kv::to_string(policy.score) ==
          "lookahead_kv(recent=2, pool=none, rows=mean, group=mean) | frozen(how=replace)");

    // What is kept has the same scores afterwards, and an entry that came later has 0.
    auto plan = kv::make_plan(lanes.exec, policy, lanes.view, kv::compact{});
    kv::decide(lanes.exec, policy, kv::signals{lanes.view.lanes}, state, plan);
    kv::apply(lanes.exec, kv::compact{}, plan, lanes.view, state);
    kv::append(lanes.exec, lanes.view, state, {.tokens = 1, .position = 20});
    auto const later = lanes.scores(policy, kv::signals{lanes.view.lanes}, state);
    for (std::size_t i = 0; i < later.size(); ++i) {
      CHECK(later[i].size() == 9);
      for (auto const& [position, score] : later[i]) CHECK(score == (position == 20 ? 0 : expected[i].at(position)));
    }
  }

  TEST_CASE("scores of several observes are added, or the highest counts") {
    four_lanes lanes;
    outside_rows const first(1), second(2);
    auto const a = lanes.direct(first);
    auto const b = lanes.direct(second);
    for (auto const how : {kv::freezing::replace, kv::freezing::add, kv::freezing::highest}) {
      CAPTURE(kv::to_string(how));
      kv::eviction const policy{.score = kv::frozen<kv::lookahead_kv>{{.recent = 2}, how}, .budget = kv::per_lane{8}};
      auto state = kv::make_state(lanes.exec, policy, lanes.view);
      kv::observe(lanes.exec, policy, lanes.with(first), state);
      kv::observe(lanes.exec, policy, lanes.with(second), state);
      auto const found = lanes.scores(policy, kv::signals{lanes.view.lanes}, state);
      for (std::size_t i = 0; i < found.size(); ++i) {
        for (auto const& [position, score] : found[i]) {
          float const x = a[i].at(position);
          float const y = b[i].at(position);
          CHECK(score == (how == kv::freezing::replace ? y : how == kv::freezing::add ? x + y : std::max(x, y)));
        }
      }
    }
  }

  TEST_CASE("in a spec it is the first stage after its scorer") {
    four_lanes lanes;
    outside_rows const rows(1);
    kv::eviction const typed{.score = kv::frozen<kv::lookahead_kv>{{.recent = 2}, kv::freezing::highest},
                             .budget = kv::per_lane{8}};
    char const* const text =
        "lookahead_kv(recent=2, pool=none, rows=mean, group=mean) | frozen(how=highest) | budget(8)";
    auto const named = kv::parse(text);
    CHECK(kv::to_string(named) == text);
    CHECK(named == kv::parse(kv::to_string(named)));
    CHECK(named == kv::any_policy(typed));
    CHECK_FALSE(named == kv::parse("lookahead_kv(recent=2) | frozen(add) | budget(8)"));
    auto const after_observe = [&](auto const& policy) {
      auto state = kv::make_state(lanes.exec, policy, lanes.view);
      kv::observe(lanes.exec, policy, lanes.with(rows), state);
      return lanes.scores(policy, kv::signals{lanes.view.lanes}, state);
    };
    CHECK(after_observe(named) == after_observe(typed));
    auto const reduced = kv::parse("lookahead_kv(recent=2) | frozen | reduce_lanes(layer, max) | budget(8)");
    auto [state, plan] = state_and_plan(lanes.exec, reduced, lanes.view);
    kv::observe(lanes.exec, reduced, lanes.with(rows), state);
    kv::decide(lanes.exec, reduced, kv::signals{lanes.view.lanes}, state, plan);
    auto const expected = lanes.direct(rows);
    for (int layer = 0; layer < 2; ++layer) {
      auto const i = as_size(2 * layer);
      for (int e = 0; e < 20; ++e) {
        CHECK(plan.score(layer, e) == std::max(expected[i].at(e), expected[i + 1].at(e)));
      }
    }
    auto const refused = [](char const* spec) { return error_of([&] { (void)kv::parse(spec); }); };
    CHECK(refused("h2o | frozen").starts_with("parse: column 7 = frozen, but the scorers that can be frozen are "));
    CHECK(refused("knorm | reduce_lanes(layer, max) | frozen") ==
          "parse: column 36 = frozen, but it is the first stage after its scorer");
  }

  TEST_CASE("scorers for the end of a prompt are frozen with their recorders: a later decision is the same") {
    for (std::string const spec :
         {"snapkv(window=4, pool=max:3)", "cake(window=4, pool=avg:3, gamma=20)", "finch(window=3)",
          "cake(window=4, pool=none, tau2=0.4)", "dynamic_kv(window=4, pool=none)"}) {
      CAPTURE(spec);
      four_lanes lanes;
      mock_queries rows(lanes.cache, kv::codec::f32, 20, 20);
      fill(rows, lanes.cache, content::smooth);
      for (int r = 0; r < 20; ++r) rows.set_position(0, r, r);
      kv::any_policy const direct = kv::parse(spec + " | budget(9)"), later = kv::parse(spec + " | frozen | budget(9)");
      CHECK(kv::parse(kv::to_string(later)) == later);
      auto [direct_state, expected] = state_and_plan(lanes.exec, direct, lanes.view);
      kv::queries const observed{rows.view()};
      kv::signals const in{lanes.view.lanes, kv::keys_of(lanes.view), observed};
      observe_and_decide(lanes.exec, direct, in, direct_state, expected);

      auto [state, plan] = state_and_plan(lanes.exec, later, lanes.view);
      for (int layer = 0; layer < 2; ++layer) {  // as a prefill does, layer by layer
        kv::signals const some{lanes.view.lanes.layers_only(layer, layer + 1), kv::keys_of(lanes.view), observed};
        kv::observe(lanes.exec, later, some, state);
      }
      lanes.cache.write(of::keys, lanes.cache.lane_at(1), 4, std::vector<double>(8, 9.0));  // nobody reads it again
      CHECK(allocations_in([&] { kv::decide(lanes.exec, later, kv::signals{lanes.view.lanes}, state, plan); }) == 0);
      for (int s = 0; s < plan.keep().segments(); ++s) {
        CHECK(listed(plan.keep(), s) == listed(expected.keep(), s));
        CHECK(plan.score(s, 3) == expected.score(s, 3));
      }
      auto const numbers = [&](auto const& of) {
        std::vector<int> made;
        for (int i = 0; i < 4 && of.shares().data != nullptr; ++i)
          made.push_back(*of.shares().row(lanes.view.lanes.at(i)));
        return made;
      };
      CHECK(numbers(plan) == numbers(expected));
    }
  }

  TEST_CASE("scores below 0, and of 0, are scores too") {
    four_lanes lanes;
    kv::eviction const direct{.score = kv::knorm{}, .budget = kv::per_lane{8}};
    auto const none = kv::make_state(lanes.exec, direct, lanes.view);
    kv::signals const in{lanes.view.lanes, kv::keys_of(lanes.view)};
    lanes.cache.write(of::keys, lanes.cache.lane_at(1), 4, std::vector<double>(8, 0.0));
    auto const expected = lanes.scores(direct, in, none);
    kv::eviction const policy{.score = kv::frozen<kv::knorm>{{}, kv::freezing::highest}, .budget = kv::per_lane{8}};
    auto state = kv::make_state(lanes.exec, policy, lanes.view);
    kv::observe(lanes.exec, policy, in, state);
    CHECK(lanes.scores(policy, kv::signals{lanes.view.lanes}, state) == expected);
    // Longer keys have lower scores, so that the first ones stay.
    for (int i = 0; i < lanes.cache.lane_count(); ++i) {
      for (int e = 0; e < 20; ++e) lanes.cache.write(of::keys, lanes.cache.lane_at(i), e, std::vector<double>(8, 9.0));
    }
    kv::observe(lanes.exec, policy, in, state);
    CHECK(lanes.scores(policy, kv::signals{lanes.view.lanes}, state) == expected);
  }
}

}  // namespace freeze_test
