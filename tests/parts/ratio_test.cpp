// SPDX-License-Identifier: Apache-2.0
// What a ratio is a part of, and how it is rounded.
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

constexpr int tokens = 412;

/// The entries of each lane after a decode loop of `tokens` tokens that decides after every one of them.
template <class Policy>
std::vector<int> left_after(Policy const& policy, int length = tokens) {
  mock_cache cache(
      {.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .sequences = 2, .bound = tokens});
  kv::host_executor exec;
  kv::cache view = cache.view();
  auto [state, plan] = state_and_plan(exec, policy, view, kv::compact{});
  for (int t = 0; t < length; ++t) {
    for (int s = 0; s < 2; ++s) kv::append(exec, view, state, {.sequence = s, .tokens = 1, .position = t});
    for (int i = 0; i < view.lanes.size(); ++i) {
      kv::lane const one = view.lanes.at(i);
      cache.write(of::keys, one, *view.lanes.count.row(one) - 1, {float(t * 7 % 13 + i), 1, 0, 0});
    }
    kv::decide(exec, policy, kv::signals{view.lanes, kv::keys_of(view)}, state, plan);
    kv::apply(exec, kv::compact{}, plan, view, state);
  }
  std::vector<int> left;
  for (int i = 0; i < view.lanes.size(); ++i) left.push_back(*view.lanes.count.row(view.lanes.at(i)));
  return left;
}
std::vector<int> left_after(char const* spec, int length = tokens) { return left_after(kv::parse(spec), length); }

int total(std::vector<int> const& of) {
  int sum = 0;
  for (int const each : of) sum += each;
  return sum;
}

std::vector<int> const half(8, tokens / 2);

TEST_SUITE("parts/seen: drop_ratio") {
  TEST_CASE("a policy that decides after every token keeps a part of all tokens, typed and by name") {
    CHECK(left_after(kv::eviction{.score = kv::knorm{}, .budget = kv::drop_ratio{0.5}}) == half);
    CHECK(left_after(kv::eviction{.score = kv::streaming_llm{}, .budget = kv::drop_ratio{0.5}}) == half);
    CHECK(left_after(kv::eviction{.score = kv::random_scores{}, .budget = kv::drop_ratio{0.5}}) == half);
    for (char const* const spec :
         {"knorm | budget(ratio=0.5)", "streaming_llm | budget(ratio=0.5)", "random | budget(ratio=0.5)",
          "knorm | budget(ratio=0.5, rounding=exact)", "knorm | budget(ratio=0.5, rounding=kvpress)",
          "knorm | reduce_lanes(token, max) | budget(ratio=0.5)", "knorm | budget(ratio=0.5) | when(chunk)",
          "knorm | budget(ratio=0.5) | when(turn)"}) {
      CAPTURE(spec);
      CHECK(left_after(spec) == half);
    }
  }

  TEST_CASE("lanes that share a ratio keep it together, and a ramp, a table or an importance divides it") {
    CHECK(total(left_after("knorm | budget(ratio=0.5, scope=layer)")) == total(half));
    CHECK(total(left_after("knorm | budget(ratio=0.5, scope=global, floor=0.3)")) == total(half));
    std::vector<int> const ramp = left_after("knorm | budget(ratio=0.5, by=ramp, beta=4)");
    CHECK(std::abs(total(ramp) - total(half)) <= 8);  // a layer's share may sink by one entry from token to token
    CHECK(ramp[0] > ramp[2]);
    std::vector<float> const weights{3, 1};
    std::vector<int> const shares{50, 40, 30, 20};
    kv::registry known = kv::shipped();
    known.table("profile", kv::by_lane<float const>{weights.data(), 0, 1, 0});
    known.table("shares", kv::by_lane<int const>{shares.data(), 0, 2, 1});
    std::vector<int> const important =
        left_after(known.parse("knorm | budget(ratio=0.5, by=importance, table=profile, least=4)"));
    CHECK(total(important) == total(half));
    CHECK(important[0] > important[2]);
    CHECK(left_after(known.parse("knorm | budget(ratio=0.5, by=table, table=shares)")) ==
          std::vector<int>{50, 40, 30, 20, 50, 40, 30, 20});
  }

  TEST_CASE("a policy that decides after a prompt, and one that says so, keeps a part of the entries that are held") {
    std::vector<int> const one(8, 1);
    CHECK(left_after(kv::eviction{.score = kv::knorm{}, .budget = kv::drop_ratio{.drop = 0.5, .held = true}}) == one);
    for (char const* const spec : {"knorm | budget(ratio=0.5, held=true)", "knorm | budget(ratio=0.5) | when(prefill)",
                                   "knorm | budget(ratio=0.5) | when(layer)"}) {
      CAPTURE(spec);
      CHECK(left_after(spec) == one);
    }
    CHECK(left_after("knorm | budget(ratio=0.5, rounding=exact, held=true)") == std::vector<int>(8, 0));
  }

  TEST_CASE("one entry of a short lane stays, unless the rounding is exact or all are dropped") {
    kv::eviction policy{.score = kv::knorm{}, .budget = kv::drop_ratio{0.9}};
    CHECK(left_after(policy, 2) == std::vector<int>(8, 1));
    CHECK(left_after(kv::any_policy(policy), 2) == std::vector<int>(8, 1));
    policy.budget.round = kv::rounding::exact;
    CHECK(left_after(policy, 2) == std::vector<int>(8, 0));
    for (double const drop : {0.0, 0.3, 0.5, 0.9, 0.99, 0.999, 1.0}) {
      for (int count = 0; count <= 120; ++count) {
        int const exact = kv::drop_ratio{drop, kv::rounding::exact}({}, count);
        CHECK(kv::drop_ratio{drop}({}, count) == (count > 0 && drop < 1 ? std::max(exact, 1) : exact));
        CHECK(kv::seen{drop}({}, count) == kv::drop_ratio{drop}({}, count));
        CHECK(kv::any_budget(kv::drop_ratio{drop})({}, count) == kv::drop_ratio{drop}({}, count));
      }
    }
  }

  TEST_CASE("a plan has room for the shares of a ratio of tokens seen, which is counted, and such a policy is due") {
    mock_cache cache({.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = 16});
    kv::host_executor exec;
    kv::cache const view = cache.view();
    auto const bytes = [&](char const* spec) {
      kv::any_policy const policy = kv::parse(spec);
      CHECK(kv::make_plan(exec, policy, view).allots() == kv::due(policy, view));
      return kv::required_bytes<kv::host_executor>(policy, view).plan;
    };
    std::size_t const shares = 4 * sizeof(int);
    std::size_t const plain = bytes("knorm | budget(8)");
    CHECK(bytes("knorm | budget(ratio=0.5)") == plain + shares);
    CHECK(bytes("knorm | budget(ratio=0.5) | when(prefill)") == plain);
    CHECK(bytes("knorm | budget(ratio=0.5, held=true)") == plain);
    CHECK(bytes("snapkv | budget(ratio=0.5)") == bytes("snapkv | budget(8)"));
    CHECK(bytes("snapkv | budget(ratio=0.5) | when(step)") == bytes("snapkv | budget(8)") + shares);
    auto without = kv::make_plan(exec, kv::parse("knorm | budget(8)"), view);
    auto const policy = kv::parse("knorm | budget(ratio=0.5)");
    auto const state = kv::make_state(exec, policy, view);
    CHECK(error_of([&] { kv::decide(exec, policy, kv::signals{view.lanes, kv::keys_of(view)}, state, without); }) ==
          "decide: plan = without room for shares, but make_plan makes it for the policy that decides");
  }

  TEST_CASE("what is not the default is printed and read back") {
    for (char const* const text :
         {"budget(ratio=0.5)", "budget(ratio=0.5, rounding=exact)", "budget(ratio=0.5, held=true)",
          "budget(ratio=0.5, rounding=exact, held=true)", "budget(ratio=0.5, rounding=exact, by=seen)",
          "budget(ratio=0.5, rounding=kvpress, held=true, scope=layer, floor=0.2)"}) {
      std::string const spec = std::string("knorm | ") + text;
      CHECK(kv::to_string(kv::parse(spec)) == spec);
      CHECK(kv::parse(kv::to_string(kv::parse(spec))) == kv::parse(spec));
    }
    CHECK(kv::to_string(kv::drop_ratio{0.5, kv::rounding::exact, true}) ==
          "budget(ratio=0.5, rounding=exact, held=true)");
    CHECK(kv::to_string(kv::parse("knorm | budget(8, rounding=exact)")) == "knorm | budget(8)");
    CHECK_FALSE(kv::parse("knorm | budget(ratio=0.5)") == kv::parse("knorm | budget(ratio=0.5, held=true)"));
    auto const refused = [](char const* spec) { return error_of([&] { (void)kv::parse(spec); }); };
    std::string const rule =
        "parse: column 9 = budget, but held says that a ratio is one of the entries that a lane holds";
    CHECK(refused("knorm | budget(8, held=true)") == rule);
    CHECK(refused("knorm | budget(ratio=0.5, by=seen, held=true)") == rule);
    CHECK(refused("knorm | budget(8, rounding=kvpress)") == "parse: column 9 = budget, but only a ratio is rounded");
  }
}

}  // namespace
