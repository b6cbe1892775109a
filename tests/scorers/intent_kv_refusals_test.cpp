// SPDX-License-Identifier: Apache-2.0
// What IntentKV refuses, by name and before anything is written; and what it recovers from.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// One layer, two heads of one sequence over a slot map each, eight entries, and the rows of a turn.
struct small_engine {
  static constexpr int dims = 8;
  static constexpr int bound = 8;
  std::vector<float> k = std::vector<float>(2 * bound * dims, 0.25f), v = k, q = std::vector<float>(2 * 5 * dims, 0.5f);
  std::vector<float> weights = std::vector<float>(4096, 0.1f);
  std::vector<int> list{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7}, position{list}, count{0, 0};
  std::vector<int> rows{3, 4, 5, 6, 7};
  int begin = 0, end = 0;

  kv::cache view() {
    auto const plane = [](std::vector<float>& of) {
      return kv::plane{.base = reinterpret_cast<std::byte*>(of.data()),
                       .channels = dims,
                       .unit_stride = 4 * dims,
                       .head_stride = 4 * dims * bound,
                       .channel_stride = 4};
    };
    return {.shape = {1, 2, 2, dims},
            .lanes = lanes_over(count, position, 1, 1, 2, bound),
            .k = plane(k),
            .v = plane(v),
            .where = kv::slot_map({list.data(), 0, 2 * bound, bound}, bound)};
  }
  kv::turn_queries turn() {
    kv::turn_queries made;
    made.base = reinterpret_cast<std::byte const*>(q.data());
    made.dims = dims;
    made.head = 4 * 5 * dims;
    made.row = 4 * dims;
    made.heads = 2;
    made.rows = 5;
    made.position = {rows.data()};
    made.span_begin = &begin;
    made.span_end = &end;
    return made;
  }
  [[nodiscard]] kv::residual_head head() const {
    float const* const at = weights.data();
    return {dims, 4, 6, at, at, at, at, at, at, at, at, at, at, 1.0f};
  }
};

kv::intent_kv learnable(kv::residual_head const& with) {
  return {.mode = kv::intent_mode::learnable, .tail = 2, .residual = with};
}

}  // namespace

TEST_SUITE("scorers/intent_kv/refusals") {
  TEST_CASE("a residual that does not fit is refused before a plan is made of it") {
    small_engine engine;
    kv::host_executor exec;
    auto const making = [&](auto const& bend) {
      kv::residual_head head = engine.head();
      bend(head);
      auto const policy = kv::policies::intent_kv({.budget = 4, .score = learnable(head)});
      std::string const plan = error_of([&] { (void)kv::make_plan(exec, policy, engine.view()); });
      std::string const bytes = error_of([&] { (void)kv::required_bytes<kv::host_executor>(policy, engine.view()); });
      CHECK(plan.substr(plan.find(':') + 1) == bytes.substr(bytes.find(':') + 1));
      return plan;
    };
    CHECK(making([](auto&) {}).empty());
    CHECK(making([](auto& head) { head = {}; }) ==
          "make_plan: intent_kv.residual = none, but mode learnable needs the trained weights");
    CHECK(making([](auto& head) { head.dims = 128; }) ==
          "make_plan: residual.dims = 128, but the shape says 8 channels");
    CHECK(making([](auto& head) { head.width = 6; }) ==
          "make_plan: residual.width = 6, but four heads share it evenly");
    CHECK(making([](auto& head) { head.hidden = -100000; }) ==
          "make_plan: residual.hidden = -100000, but there is at least one hidden unit");
    CHECK(making([](auto& head) { head.fc1 = nullptr; }) ==
          "make_plan: residual = null, but a head has ten tensors and alpha");
    CHECK(making([](auto& head) { head.alpha = std::nanf(""); }) ==
          "make_plan: residual.alpha = nan, but it is finite");
  }

  TEST_CASE("a span outside the rows is refused by observe and by decide, and scores stay what they were") {
    small_engine engine;
    kv::host_executor exec;
    auto const policy = kv::policies::intent_kv({.budget = 4});
    kv::cache cache = engine.view();
    auto [state, plan] = state_and_plan(exec, policy, cache);
    kv::append(exec, cache, state, {.tokens = 8, .position = 0});
    auto const in = [&] { return kv::signals{cache.lanes, kv::keys_of(cache), engine.turn()}; };
    kv::observe(exec, policy, in(), state);
    kv::decide(exec, policy, in(), state, plan);
    float const before = plan.score(0, 0);
    for (auto const& [begin, end] : {std::pair{3, 900}, {7, 9}, {-2, 3}, {4, 3}}) {
      engine.begin = begin;
      engine.end = end;
      bool const by_begin = begin < 0 || begin > 5;
      std::string const found =
          by_begin ? "span_begin = " + std::to_string(begin) : "span_end = " + std::to_string(end);
      std::string const rest =
          std::string(": turn_queries.") + found + ", but sequence 0 gives rows 0 to 5 of its turn";
      CHECK(error_of([&] { kv::observe(exec, policy, in(), state); }) == "observe" + rest);
      CHECK(error_of([&] { kv::decide(exec, policy, in(), state, plan); }) == "decide" + rest);
      CHECK(plan.score(0, 0) == before);
    }
  }

  TEST_CASE("lanes of a token that hold unequal numbers of entries are refused in every mode") {
    small_engine engine;
    kv::host_executor exec(2);
    for (auto const mode : {kv::intent_mode::memory, kv::intent_mode::learnable}) {
      kv::intent_kv score = learnable(engine.head());
      score.mode = mode;
      auto const policy = kv::policies::intent_kv({.budget = 4, .score = score});
      engine.count = {0, 0};
      kv::cache cache = engine.view();
      auto [state, plan] = state_and_plan(exec, policy, cache);
      kv::append(exec, cache, state, {.tokens = 8, .position = 0});
      engine.count[1] = 1;
      kv::signals const in{cache.lanes, kv::keys_of(cache), engine.turn()};
      CHECK(error_of([&] { kv::decide(exec, policy, in, state, plan); }) ==
            "decide: count = 1, but lanes that decide together hold equally many entries");
    }
  }

  TEST_CASE("mode query forgets a turn that was no number, the newest of TRIM-KV scores 0 whatever its retention") {
    small_engine engine;
    kv::host_executor exec;
    auto const policy = kv::policies::intent_kv({.budget = 4, .score = {.mode = kv::intent_mode::query}});
    kv::cache cache = engine.view();
    auto state = kv::make_state(exec, policy, cache);
    kv::append(exec, cache, state, {.tokens = 8, .position = 0});
    std::vector<float> memory(16);
    for (float const first : {std::numeric_limits<float>::quiet_NaN(), 0.5f}) {
      engine.q[0] = first;
      kv::observe(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache), engine.turn()}, state);
      state.save_session(exec, 0, reinterpret_cast<std::byte*>(memory.data()));
      CHECK(std::isnan(memory[0]) == std::isnan(first));
    }
    float const never = -std::numeric_limits<float>::infinity();
    int position = 7;
    kv::trim_kv::decayed const score{{&never}, {.position = {&position}}, 0};
    CHECK(score(0, {.ordinal = 0, .count = 1, .position = 7}) == 0.0f);
    CHECK(score(0, {.ordinal = 0, .count = 1, .position = 6}) == never);
  }
}
