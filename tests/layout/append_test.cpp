// SPDX-License-Identifier: Apache-2.0
// append, commit and truncate: counts, positions and fresh columns at the end of a lane.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;
using ordinals = std::vector<int>;

mock_options two_lanes() {
  return {.model = {.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .sequences = 2};
}

/// The engine's calls on a batch, with a policy whose state has one number an entry.
struct batch {
  mock_cache cache;
  kv::host_executor exec;
  kv::eviction<kv::h2o> policy{.budget = {4}};
  kv::cache view = cache.view();
  kv::state<kv::host_executor> state = kv::make_state(exec, policy, view);

  explicit batch(mock_options const& shape) : cache(shape) {}
  void append(kv::append_request const& new_tokens) { kv::append(exec, view, state, new_tokens); }
  void truncate(int sequence, int position) { kv::truncate(exec, view, state, sequence, position); }
  void commit(int sequence, int tokens) { kv::commit(exec, view, sequence, tokens); }
  [[nodiscard]] ordinals positions(kv::lane this_lane) { return cache.positions(this_lane, cache.count(this_lane)); }
  [[nodiscard]] float* mass(kv::lane this_lane) const {
    return reinterpret_cast<float*>(state.columns()[0].rows.row(this_lane));
  }
};

}  // namespace

TEST_SUITE("layout/append") {
  TEST_CASE("new entries take the positions that follow each other, holes between appends included") {
    batch now(two_lanes());
    now.append({.sequence = 1, .tokens = 2, .position = 0});
    now.append({.sequence = 1, .tokens = 3, .position = 7});
    CHECK(now.positions({1, 0, 0}) == ordinals{0, 1, 7, 8, 9});
    CHECK(now.positions({1, 0, 1}) == ordinals{0, 1, 7, 8, 9});
    CHECK(now.cache.count({0, 0, 0}) == 0);
    now.append({.sequence = 1, .tokens = 0, .position = 10});
    CHECK(now.cache.count({1, 0, 1}) == 5);
    now.append({.sequence = 1, .tokens = 11, .position = 10});
    CHECK(now.cache.count({1, 0, 1}) == 16);
  }

  TEST_CASE("the last position is one of 32 bits") {
    batch now(two_lanes());
    int const most = std::numeric_limits<int>::max();
    CHECK(error_of([&] { now.append({0, 2, most - 1, false}); }) ==
          "append: position = 2147483646, but the last new position does not fit into 32 bits");
    now.append({0, 2, most - 2, false});
    CHECK(now.positions({0, 0, 0}) == ordinals{most - 2, most - 1});
  }

  TEST_CASE("columns of new entries start at zero, whatever stood there before, and older ones stay") {
    batch now(two_lanes());
    for (int i = 0; i < 4; ++i) {
      for (int e = 0; e < 16; ++e) now.mass(now.cache.lane_at(i))[e] = 9;
    }
    now.append({.sequence = 0, .tokens = 3, .position = 0});
    for (int e = 0; e < 16; ++e) CHECK(now.mass({0, 0, 1})[e] == (e < 3 ? 0.0f : 9.0f));
    for (int e = 0; e < 16; ++e) CHECK(now.mass({1, 0, 0})[e] == 9.0f);
    now.mass({0, 0, 1})[2] = 5;
    now.append({.sequence = 0, .tokens = 1, .position = 3, .in_flight = true});
    CHECK(now.mass({0, 0, 1})[2] == 5.0f);
    CHECK(now.mass({0, 0, 1})[3] == 0.0f);
  }

  TEST_CASE("drafts are counted until they are committed or cut off, the last ones first") {
    batch now(two_lanes());
    now.append({.sequence = 0, .tokens = 4, .position = 0});
    now.append({.sequence = 0, .tokens = 3, .position = 4, .in_flight = true});
    now.append({.sequence = 0, .tokens = 2, .position = 7, .in_flight = true});
    CHECK(now.cache.drafts(0) == 5);
    CHECK(now.cache.drafts(1) == 0);
    now.truncate(0, 6);
    CHECK(now.cache.drafts(0) == 2);
    CHECK(now.positions({0, 0, 1}) == ordinals{0, 1, 2, 3, 4, 5});
    now.commit(0, 1);
    CHECK(now.cache.drafts(0) == 1);
    CHECK(now.cache.committed({0, 0, 0}) == 5);
    now.truncate(0, 2);
    CHECK(now.cache.drafts(0) == 0);
    CHECK(now.positions({0, 0, 0}) == ordinals{0, 1});
  }

  TEST_CASE("truncate cuts by position, in every lane its own number of entries, and nothing where nothing is") {
    batch now(two_lanes());
    now.cache.put({0, 0, 0}, {0, 1, 2, 3, 4, 5});
    now.cache.put({0, 0, 1}, {0, 5});
    now.cache.put({1, 0, 0}, {8, 9});
    auto const before = now.cache.save();
    now.truncate(0, 6);
    now.truncate(0, 1000);
    CHECK(now.cache.save() == before);
    now.truncate(0, 3);
    CHECK(now.positions({0, 0, 0}) == ordinals{0, 1, 2});
    CHECK(now.positions({0, 0, 1}) == ordinals{0});
    now.truncate(0, 0);
    CHECK(now.cache.count({0, 0, 0}) == 0);
    CHECK(now.cache.count({0, 0, 1}) == 0);
    CHECK(now.cache.count({1, 0, 0}) == 2);
  }

  TEST_CASE("only the cache's layers grow") {
    mock_options shape = two_lanes();
    shape.model.layers = 2;
    batch now(shape);
    now.view.lanes = now.view.lanes.layers_only(1, 2);
    now.view.lanes.in_flight = nullptr;  // drafts would be counted for all layers together
    now.append({.sequence = 0, .tokens = 2, .position = 0});
    CHECK(now.cache.count({0, 0, 0}) == 0);
    CHECK(now.cache.count({0, 1, 1}) == 2);
  }

  TEST_CASE("a count and positions that all lanes of a sequence share change once a call") {
    holds("shared tables == a list for each sequence", [] {
      mock_options shape = any_mock(12);
      shape.shared_entries = true;
      shape.bound = 16;
      batch now(shape);
      std::vector<ordinals> model(as_size(shape.sequences));
      auto const steps = *rc::gen::container<ordinals>(rc::gen::inRange(0, 4));
      for (int const choice : steps) {
        int const s = now.cache.random().below(shape.sequences);
        ordinals& list = model[as_size(s)];
        int const next = list.empty() ? 0 : list.back() + 1 + now.cache.random().below(3);
        int const drafts = now.cache.drafts(s);
        if (choice == 2) {
          int const kept = now.cache.random().below(static_cast<int>(list.size()) + 1);
          int const cut = kept == static_cast<int>(list.size()) ? next : list[as_size(kept)];
          now.truncate(s, cut);
          RC_ASSERT(now.cache.drafts(s) == std::max(0, drafts - (static_cast<int>(list.size()) - kept)));
          list.resize(as_size(kept));
        } else if (choice == 3) {
          now.commit(s, drafts);
          RC_ASSERT(now.cache.drafts(s) == 0);
        } else if (choice == 1 || drafts == 0) {
          int const tokens = std::min(16 - static_cast<int>(list.size()), now.cache.random().below(4));
          now.append({s, tokens, next, choice == 1});
          RC_ASSERT(now.cache.drafts(s) == drafts + (choice == 1 ? tokens : 0));
          for (int t = 0; t < tokens; ++t) list.push_back(next + t);
        }
        for (int each = 0; each < shape.sequences; ++each) {
          RC_ASSERT(now.positions({each, 0, 0}) == model[as_size(each)]);
        }
      }
    });
  }
}
