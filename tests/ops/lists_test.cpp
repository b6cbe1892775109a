// SPDX-License-Identifier: Apache-2.0
// Lists, maps and pools where they lie in unusual ways: maps of a batch at request numbers, pools that layers share.

#include "layout/slot_cache.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// A pool that all layers of a head draw from: layer stride 0, a list for each lane.
struct layers_share {
  layers_share() {
    view.k.layer_stride = view.v.layer_stride = 0;
    for (std::size_t lane = 0; lane < 4; ++lane) {  // (layer, head): slots 4 * lane and on
      cache.count[lane] = 3;
      for (int e = 0; e < 4; ++e) {
        cache.list[4 * lane + as_size(e)] = static_cast<int>(4 * lane) + e;
        cache.position[4 * lane + as_size(e)] = e;
      }
    }
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
  }
  std::string error() {
    return error_of([&] { kv::apply(exec, kv::list_rewrite{.list = cache.list_table()}, plan, view, state); });
  }

  slot_cache cache{{.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4},
                    .bound = 4,
                    .spare = 16,
                    .by_lane = true}};
  kv::eviction<kv::random_scores> policy{.budget = {2}};
  kv::host_executor exec;
  kv::cache view = cache.view();
  kv::state<kv::host_executor> state = kv::make_state(exec, policy, view);
  kv::plan<kv::host_executor> plan = kv::make_plan(exec, policy, view);
};

}  // namespace

TEST_SUITE("ops/lists") {
  TEST_CASE("where layers share a pool and heads do not, two heads may have one slot number and two layers may not") {
    layers_share heads;
    heads.cache.list[4 * 2] = heads.cache.list[4 * 1];  // (layer 1, head 0) and (layer 0, head 1)
    CHECK(heads.error() == "");
    layers_share layers;
    int const slot = layers.cache.list[4 * 2] = layers.cache.list[0];  // (layer 1, head 0) and (layer 0, head 0)
    std::string const error = layers.error();
    INFO(error);
    CHECK(error.find("slot " + std::to_string(slot) + " at position 0 of lane (0, 1, 0)") != std::string::npos);
  }

  TEST_CASE("maps of a batch may lie at request numbers of their own") {
    slot_cache cache({.sequences = 2, .bound = 4});
    std::vector<int> requests(5 * 8, 77);  // a row of 8 positions for each request; ours are requests 3 and 1
    std::vector<int> begins{3 * 8, 1 * 8};
    kv::eviction<kv::streaming_llm> const policy{.score = {.sinks = 1}, .budget = {2}};
    kv::host_executor exec;
    kv::cache view = cache.view();
    auto [state, plan] = state_and_plan(exec, policy, view);
    auto const map = [&](int s, int p) -> int& { return requests[as_size(begins[as_size(s)] + p)]; };
    for (int s = 0; s < 2; ++s) {
      kv::append(exec, view, state, {s, 4, 0});
      for (int p = 0; p < 4; ++p) map(s, p) = cache.list[as_size(4 * s + p)];
    }
    auto expected = requests;
    for (int s = 0; s < 2; ++s) {
      for (int const p : {1, 2}) expected[as_size(begins[as_size(s)] + p)] = cache.dead();
    }
    auto how = cache.redirecting();
    how.map = {requests.data(), 0, 0, 0};
    how.map_begin = {begins.data(), 1, 0, 0};
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    kv::apply(exec, how, plan, view, state);
    CHECK(requests == expected);
    for (int p = 0; p < 4; ++p) map(0, p) = p;  // a tree says where it keeps request 3
    kv::relist(exec, how, view, 0, 4);
    CHECK(cache.listed({0, 0, 0}) == std::vector<int>{0, 3});
    CHECK(std::vector<int>{map(0, 0), map(0, 1), map(0, 2), map(0, 3)} ==
          std::vector<int>{0, cache.dead(), cache.dead(), 3});
    CHECK(requests[0] == 77);
  }

  TEST_CASE("relist refuses what is no map, no list, no dead slot and no length") {
    slot_cache cache({.bound = 4});
    kv::host_executor exec;
    kv::cache const view = cache.view();
    auto const refused = [&](auto const& edit, int length) {
      auto how = cache.redirecting();
      edit(how);
      return error_of([&] { kv::relist(exec, how, view, 0, length); });
    };
    std::vector<int> elsewhere = cache.list;
    CHECK(refused([](auto& how) { how.map = {}; }, 4) ==
          "relist: map = null, but live entries take their slots from it");
    CHECK(refused([](auto& how) { how.list = {}; }, 4).starts_with("relist: list = null, but it is"));
    CHECK(
        refused([&](auto& how) { how.list.data = elsewhere.data(); }, 4).starts_with("relist: list = another table,"));
    CHECK(refused([](auto& how) { how.list.head += 1; }, 4).starts_with("relist: list.head = "));
    CHECK(refused([](auto& how) { how.dead = -1; }, 4).substr(0, 18) == "relist: dead = -1,");
    CHECK(refused([](auto&) {}, -1) == "relist: length = -1, but a count cannot be negative");
    CHECK(refused([](auto&) {}, 4) == "");
  }
}
