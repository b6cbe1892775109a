// SPDX-License-Identifier: Apache-2.0
// FastGen: the cheapest of five recipes that keeps enough of what a lane's entries have received.
#pragma once

#include "reference/methods.hpp"
#include "support/masses.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct cheapest_recipe {
  using scorer = kv::cheapest_recipe;
  static constexpr auto header = "cheapest_recipe.hpp";
  static constexpr refusal refusals[] = {
      {"cheapest_recipe",
       "parse: column 1 = cheapest_recipe, but the table token_class is given to the registry by its name"},
      {"fastgen", "parse: column 1 = fastgen, but the table token_class is given to the registry by its name"}};

  /// The class of each position.
  static kv::by_lane<int const> classes() {
    static std::vector<int> const made = [] {
      std::vector<int> of;
      for (int i = 0; i < 400; ++i) of.push_back(i * 7 % 11 == 0 ? 1 : i % 6 == 1 ? 2 : i % 5);
      return of;
    }();
    return {made.data()};
  }
  static kv::registry known() { return kv::shipped().table("token_class", classes()); }

  static scorer any() {
    return {.recover = *rc::gen::element(0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0),
            .recent = *rc::gen::element(0.0, 0.1, 0.3, 1.0),
            .frequent = *rc::gen::element(0.0, 0.1, 0.3, 0.7, 1.0),
            .classes = classes()};
  }
  static int last(scorer const&) { return 0; }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    if (lane.keys.empty()) return {};
    reference::row const mass = reference::attention_mass(
        lane.attention(), {.rows = reference::reduction::sum, .group = reference::reduction::sum});
    return by_recipe(with, mass, lane.positions);
  }
  /// 1 + the number of the recipe for what stays, 0 for the others; empty where rounding decides.
  static reference::row by_recipe(scorer const& with, reference::row const& mass, std::vector<int> const& positions) {
    std::size_t const count = mass.size();
    auto const part = [&](double of) { return as_size(of * static_cast<double>(count) + 1e-9); };
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return mass[a] != mass[b] ? mass[a] > mass[b] : a < b; });
    double const all = std::accumulate(mass.begin(), mass.end(), 0.0);
    std::vector<bool> kept(count, false);
    for (int recipe = 0; recipe < 5; ++recipe) {
      for (std::size_t e = 0; e < count; ++e) {
        if (recipe < 2 && classes().data[positions[e]] == recipe + 1) kept[e] = true;
        if (recipe == 2 && e < part(with.frequent)) kept[order[e]] = true;
        if ((recipe == 3 && e >= count - part(with.recent)) || recipe == 4) kept[e] = true;
      }
      std::size_t const cut = part(with.frequent);
      if (recipe == 2 && cut > 0 && cut < count && mass[order[cut - 1]] - mass[order[cut]] < 1e-5) return {};
      double sum = 0;
      bool whole = true;
      for (std::size_t e = 0; e < count; ++e) sum += kept[e] ? mass[e] : 0, whole = whole && kept[e];
      if (!whole && std::abs(sum / all - with.recover) < 1e-5 && recipe < 4 && sum > 0) return {};
      if (recipe < 4 && !whole && sum / all < with.recover) continue;
      reference::row made;
      for (std::size_t e = 0; e < count; ++e) made.push_back(kept[e] ? 1 + recipe : 0);
      return made;
    }
    return {};
  }

  /// Five entries, of which the first is special and the third punctuation.
  static void worked() {
    double const mass[] = {0.3, 0.05, 0.05, 0.1, 0.5};
    int const of_tokens[] = {1, 0, 2, 0, 0};
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 1}});
    cache.put({}, up_to(5));
    for (int e = 0; e < 5; ++e) cache.write(of::keys, {}, e, {std::log(mass[e])});
    mock_queries row(cache, kv::codec::f32, 1, 1);
    row.set_position(0, 0, 4);
    row.write(0, 0, 0, 0, {1.0});
    kv::registry const known = kv::shipped().table("token_class", kv::by_lane<int const>{of_tokens});
    kv::host_executor exec;
    auto const kept = [&](std::string const& fields) {
      kv::any_policy const policy = known.parse("fastgen(" + fields + ")");
      auto [state, plan] = state_and_plan(exec, policy, cache.view());
      kv::signals const in{cache.lanes(), kv::keys_of(cache.view()), kv::queries{row.view()}};
      kv::observe(exec, policy, in, state);
      CHECK(allocations_in([&] { kv::decide(exec, policy, in, state, plan); }) == 0);
      return listed(plan.keep(), 0);
    };
    CHECK(kept("recover=0.29, recent=0, frequent=0") == std::vector{0});
    CHECK(kept("recover=0.34, recent=0, frequent=0") == std::vector{0, 2});
    CHECK(kept("recover=0.8, recent=0.2, frequent=0.2") == std::vector{0, 2, 4});
    CHECK(kept("recover=0.9, recent=0.4, frequent=0.2") == std::vector{0, 2, 3, 4});
    CHECK(kept("recover=0.96, recent=0.4, frequent=0.2") == std::vector{0, 1, 2, 3, 4});
    std::string const spec = "cheapest_recipe(recover=0.9, recent=0.3, frequent=0.3) | unlimited | at_least(";
    CHECK(kv::to_string(known.parse("fastgen(0.9)")) == spec + "least=0.5, strict=false, unbounded=false)");
    auto const error = [&](char const* text) { return error_of([&] { (void)known.parse(text); }); };
    CHECK(error("fastgen | budget(9)") ==
          "parse: column 11 = budget, but at_least keeps however many entries there are");
    CHECK(error("fastgen(recover=2)") ==
          "parse: column 1: fastgen: cheapest_recipe.recover = 2, but a part of attention, 0 to 1");
    CHECK(error("cheapest_recipe(recent=-1)") ==
          "parse: column 1: cheapest_recipe.recent = -1, but a part of the entries, 0 to 1");
    CHECK(error("cheapest_recipe(frequent=2)") ==
          "parse: column 1: cheapest_recipe.frequent = 2, but a part of the entries, 0 to 1");
    CHECK(error_of([&] { kv::cheapest_recipe{}.check("make_plan"); }) ==
          "make_plan: cheapest_recipe.classes = null, but the engine has the class of every token");
    equals_keep_the_lower(exec, row);
  }

 private:
  /// All entries have received the same: the first ones of them are the frequent ones.
  static void equals_keep_the_lower(kv::host_executor& exec, mock_queries& row) {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 1}});
    cache.put({}, up_to(5));
    for (int e = 0; e < 5; ++e) cache.write(of::keys, {}, e, {e == 3 ? 1.0 : 0.0});
    kv::eviction const policy{.score = kv::cheapest_recipe{.recover = 0.7, .recent = 0, .frequent = 0.6},
                              .budget = kv::unlimited{},
                              .pick = kv::at_least{0.5f}};
    int const none[5] = {};
    kv::eviction with = policy;
    with.score.classes = {none};
    auto [state, plan] = state_and_plan(exec, with, cache.view());
    kv::signals const in{cache.lanes(), kv::keys_of(cache.view()), kv::queries{row.view()}};
    kv::observe(exec, with, in, state);
    kv::decide(exec, with, in, state, plan);
    CHECK(listed(plan.keep(), 0) == std::vector{0, 1, 3});
    CHECK(plan.score(0, 3) == 3);
    CHECK(plan.score(0, 4) == 0);
  }
};

}  // namespace kvpolicy_test::methods
