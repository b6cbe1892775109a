// SPDX-License-Identifier: Apache-2.0
// The calls for groups of layers: who gets them, and what is refused.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

mock_options shape_of(int layers, int heads, int bound = 16) {
  mock_options how;
  how.model = {.layers = layers, .query_heads = 4, .kv_heads = heads, .head_dim = 4};
  how.sequences = 2;
  how.bound = bound;
  return how;
}

/// A model of six layers: two that see everything, three with a window, and a recurrent one.
struct mixed_model {
  mock_cache full{shape_of(2, 2)};
  mock_cache sliding{shape_of(3, 1)};
  kv::layer_groups groups{.layers = 6,
                          .groups = {{"full", full.view(), {2, 5}}, {"sliding", sliding.view(), {0, 1, 3}}}};
  kv::host_executor exec;
};

TEST_SUITE("groups") {
  TEST_CASE("each group is decided about by its own policy, and one without a policy is not touched") {
    mixed_model model;
    mock_cache &full_cache = model.full, &sliding_cache = model.sliding;
    kv::host_executor& exec = model.exec;
    // example-begin layer_groups
    // Layers 2 and 5 see all tokens, layers 0, 1 and 3 a window that the engine keeps itself, and layer 4 is recurrent.
    kv::layer_groups groups{
        .layers = 6, .groups = {{"full", full_cache.view(), {2, 5}}, {"sliding", sliding_cache.view(), {0, 1, 3}}}};
    kv::by_group const policies(kv::policies::h2o({.budget = 8}), kv::no_policy{});  // in the order of the groups
    auto states = kv::make_state(exec, policies, groups);
    auto plans = kv::make_plan(exec, policies, groups, kv::compact{});

    kv::append(exec, groups, states, {.sequence = 1, .tokens = 12, .position = 0});
    // The signals of a group: its cache, and the query rows of its layers.
    auto const signals_of = [&](int g) {
      kv::cache const& in = groups.groups[static_cast<std::size_t>(g)].entries;
      return kv::signals{in.lanes, kv::keys_of(in)};
    };
    kv::evict(exec, policies, signals_of, kv::compact{}, groups, states, plans);
    // example-end layer_groups
    CHECK(full_cache.count({1, 1, 1}) == 8);
    CHECK(full_cache.count({0, 0, 0}) == 0);
    CHECK(sliding_cache.count({1, 2, 0}) == 0);
    CHECK(states.of[0].has_value());
    CHECK_FALSE(states.of[1].has_value());
    CHECK_FALSE(plans.of[1].has_value());
    CHECK(groups.find(5) == kv::place_of_layer{0, 1});
    CHECK(groups.find(3) == kv::place_of_layer{1, 2});
    CHECK(groups.find(4) == kv::place_of_layer{});
  }

  TEST_CASE("one policy serves all groups, in the slots of a batch") {
    mixed_model model;
    auto const policy = kv::policies::knorm({.budget = 4});
    auto [states, plans] = state_and_plan(model.exec, policy, model.groups, kv::at_once{.sequences = 1});
    int const list[] = {1};
    kv::layer_groups active = kv::only(model.groups, {.slots = list, .size = 1});
    kv::append(model.exec, active, states, {.sequence = 0, .tokens = 9, .position = 0});
    auto const signals_of = [&](int g) {
      kv::cache const& in = active.groups[as_size(g)].entries;
      return kv::signals{in.lanes, kv::keys_of(in)};
    };
    kv::observe(model.exec, policy, active, signals_of, states);
    kv::decide(model.exec, policy, active, signals_of, states, plans);
    kv::apply(model.exec, [](int) { return kv::compact{}; }, plans, active, states);
    CHECK(model.full.count({1, 1, 1}) == 4);
    CHECK(model.sliding.count({1, 2, 0}) == 4);
    CHECK(model.sliding.count({0, 2, 0}) == 0);

    std::vector<std::byte> saved(kv::saved_bytes(model.exec, model.groups, states, 1));
    CHECK(kv::save(model.exec, model.groups, states, 1, saved) == saved.size());
    kv::load(model.exec, model.groups, states, 0, saved);
    CHECK(model.sliding.positions({0, 2, 0}, 4) == model.sliding.positions({1, 2, 0}, 4));
    CHECK(model.full.row(of::keys, {0, 1, 1}, 3) == model.full.row(of::keys, {1, 1, 1}, 3));
    CHECK(error_of([&] { kv::fork(model.exec, model.groups, states, 1, 0); }) ==
          "fork: to = 0, but a request uses this slot: reset it first, in group full");
    kv::reset(model.exec, model.groups, states, 0);
    saved.pop_back();
    CHECK(error_of([&] { kv::load(model.exec, model.groups, states, 0, saved); }).find(", in group sliding") !=
          std::string::npos);
    CHECK(model.full.count({0, 0, 0}) == 0);
    kv::fork(model.exec, model.groups, states, 1, 0);
    kv::truncate(model.exec, model.groups, states, 0, 1);
    CHECK(model.full.count({0, 1, 1}) <= 1);
    CHECK(model.full.count({1, 1, 1}) == 4);
  }

  TEST_CASE("an append that one group refuses changes no group") {
    mixed_model model;
    mock_cache small(shape_of(3, 1, 8));
    model.groups.groups[1].entries = small.view();
    auto const policy = kv::policies::knorm({.budget = 4});
    auto states = kv::make_state(model.exec, policy, model.groups);
    CHECK(error_of([&] {
            kv::append(model.exec, model.groups, states, {.sequence = 0, .tokens = 9, .position = 0});
          }) == "append: tokens = 9, but lane (0, 0, 0) holds 0 of at most 8, in group sliding");
    CHECK(model.full.count({0, 0, 0}) == 0);
    kv::append(model.exec, model.groups, states, {.sequence = 0, .tokens = 8, .position = 0});
    CHECK(model.full.count({0, 0, 0}) == 8);
  }

  TEST_CASE("states and plans of other policies or groups are refused, and a stale plan changes no group") {
    mixed_model model;
    auto const knorm = kv::policies::knorm({.budget = 4});
    kv::by_group const one_left(knorm, kv::no_policy{});
    auto [states, plans] = state_and_plan(model.exec, knorm, model.groups, kv::compact{});
    auto some = kv::make_state(model.exec, one_left, model.groups);
    auto const signals_of = [&](int g) {
      kv::cache const& in = model.groups.groups[as_size(g)].entries;
      return kv::signals{in.lanes, kv::keys_of(in)};
    };
    CHECK(error_of([&] { kv::decide(model.exec, knorm, model.groups, signals_of, some, plans); }) ==
          "decide: states = none for group sliding, but they were made for policies that leave other groups alone");
    CHECK(error_of([&] { kv::observe(model.exec, one_left, model.groups, signals_of, states); }) ==
          "observe: states = one for group sliding, but they were made for policies that leave other groups alone");
    CHECK(error_of([&] {
            kv::evict(model.exec, kv::by_group(knorm), signals_of, kv::compact{}, model.groups, states, plans);
          }) == "evict: policies = 1, but the model has 2 groups, and each has one");
    states.of.pop_back();
    CHECK(error_of([&] {
            kv::append(model.exec, model.groups, states, {.sequence = 0, .tokens = 1, .position = 0});
          }) == "append: states = 1, but the model has 2 groups");

    auto whole = kv::make_state(model.exec, knorm, model.groups);
    kv::append(model.exec, model.groups, whole, {.sequence = 0, .tokens = 9, .position = 0});
    kv::decide(model.exec, knorm, model.groups, signals_of, whole, plans);
    model.sliding.count({0, 1, 0}) = 8;  // the plan of the second group is stale
    CHECK(error_of([&] {
            kv::apply(model.exec, [](int) { return kv::compact{}; }, plans, model.groups, whole);
          }).find("in group sliding") != std::string::npos);
    CHECK(model.full.count({0, 0, 0}) == 9);
  }

  TEST_CASE("groups that disagree with the model are refused") {
    mixed_model model;
    auto const policy = kv::policies::knorm({.budget = 4});
    auto const refused = [&](auto const& change) {
      kv::layer_groups wrong = model.groups;
      change(wrong);
      return error_of([&] { static_cast<void>(kv::make_state(model.exec, policy, wrong)); });
    };
    CHECK(refused([](kv::layer_groups& all) { all.groups[0].layers = {2, 3}; }) ==
          "make_state: layer = 3, but it is in group full and in group sliding");
    CHECK(refused([](kv::layer_groups& all) { all.groups[0].layers = {2, 6}; }) ==
          "make_state: layer in group full = 6, but the model has layers 0 to 5");
    CHECK(refused([](kv::layer_groups& all) { all.groups[0].layers = {2}; }) ==
          "make_state: layers of group full = 1, but the shape of its cache says 2");
    CHECK(refused([](kv::layer_groups& all) { all.groups[0].layers = {5, 2}; }) ==
          "make_state: layers of group full = not ascending, but layer i of the cache is the i-th of them");
    CHECK(refused([](kv::layer_groups& all) { all.shared = {{.layer = 4, .owner = 4}}; }) ==
          "make_state: shared.owner = 4, but layer 4 reads the cache of a layer that has one");
    CHECK(refused([](kv::layer_groups& all) { all.shared = {{.layer = 5, .owner = 2}}; }) ==
          "make_state: layer = 5, but it is in group full and in group shared");
    CHECK(refused([](kv::layer_groups& all) { all.groups.clear(); }) ==
          "make_state: groups = 0, but at least one group of layers has a cache");
    CHECK(refused([](kv::layer_groups& all) { all.groups[1].entries.k.base = nullptr; }) ==
          "make_state: k = null, but a plane is the engine's memory, in group sliding");
    kv::by_group const three(kv::policies::knorm(), kv::no_policy{}, kv::no_policy{});
    CHECK(error_of([&] { static_cast<void>(kv::make_state(model.exec, three, model.groups)); }) ==
          "make_state: policies = 3, but the model has 2 groups, and each has one");
    CHECK(refused([](kv::layer_groups& all) { all.groups[0].name = nullptr; }) ==
          "make_state: name = null, but a group has a name, for errors");
    CHECK(refused([](kv::layer_groups& all) { all.groups[1].entries.lanes.sequences = 1; }) ==
          "make_state: slots of group sliding = 1, but the other groups have 2, and a request has one in all groups");
    CHECK(refused([](kv::layer_groups& all) {
            all.layers = 7;
            all.shared = {{.layer = 4, .owner = 6}, {.layer = 6, .owner = 5}};
          }) == "make_state: shared.owner = 6, but layer 4 reads the cache of a layer that has one");
    model.groups.shared = {{.layer = 4, .owner = 5}};
    CHECK(model.groups.find(4) == kv::place_of_layer{0, 1});
    CHECK(refused([](kv::layer_groups&) {}).empty());
  }
}

}  // namespace
