// SPDX-License-Identifier: Apache-2.0
// drop_blocks: whole blocks go, what shares a block with a kept entry stays.

#include "layout/any_slots.hpp"
#include "reference/layouts.hpp"
#include "support/beside.hpp"

namespace {

using namespace kvpolicy_test;

slot_options any_pages(bool by_lane) {
  slot_options shape = any_slots(by_lane, 3);
  shape.model.head_dim = *rc::gen::element(4, 1);
  shape.bound = *rc::gen::element(16, 1, 31, 33, 40);
  shape.page = *rc::gen::element(4, 1, 3, 16);
  shape.one_list = shape.one_list || shape.page == 1;
  shape.element = *rc::gen::element(kv::codec::f32, kv::codec::f16);
  return shape;
}

template <class Policy>
void drops_whole_blocks(bool by_lane, Policy policy) {
  slot_options const shape = any_pages(by_lane);
  slot_cache cache(shape);
  kv::host_executor exec(*rc::gen::element(1, 3));
  kv::cache view = cache.view();
  auto plan = kv::make_plan(exec, policy, view);
  auto columns = kv::make_state(exec, policy, view);
  keep_beside(columns, kv::record_attention_mass{});
  auto const mass = [&](kv::lane this_lane) {
    return reinterpret_cast<float*>(columns.columns()[0].rows.row(this_lane));
  };
  dice random(shape.seed);
  std::vector<int> next(as_size(shape.sequences), 0);
  for (int round = 0; round < 4; ++round) {
    for (int s = 0; s < shape.sequences; ++s) {
      int capacity = shape.bound;
      for (int i = 0; i < cache.lane_count(); ++i) {
        if (cache.lane_at(i).sequence == s) capacity = std::min(capacity, shape.bound - cache.held(cache.lane_at(i)));
      }
      cache.in_flight[as_size(s)] = 0;
      int const tokens = random.below(capacity + 1);
      int const drafts = random.below(3);
      for (int t = 0; t < tokens; ++t) {
        int& position = next[as_size(s)];
        if (position >= cache.map_row) continue;
        cache.write_token(s, position, position);
        kv::append(exec, view, columns, {s, 1, position++, t >= tokens - drafts});
        for (kv::lane const this_lane : lanes_of(cache)) {
          if (this_lane.sequence == s)
            mass(this_lane)[cache.held(this_lane) - 1] = static_cast<float>(position - 1 + this_lane.head);
        }
      }
    }
    policy.budget.tokens = random.chance(20) ? 0 : random.below(shape.bound / 2 + 1);
    kv::decide(exec, policy, kv::signals{view.lanes}, columns, plan);
    std::vector<reference::layout_result> expected;
    std::vector<std::vector<int>> positions_before;
    kv::apply_stats wanted;
    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      std::vector<int> const kept = staying(cache, plan.keep(), i);
      wanted.logical_kept += static_cast<int>(kept.size()) - cache.held(this_lane) + cache.committed(this_lane);
      auto const table = cache.row(cache.list, this_lane, cache.places);
      expected.push_back(reference::without_blocks(table, shape.page, cache.held(this_lane), kept));
      positions_before.push_back(cache.positions(this_lane));
      wanted.attended_length += static_cast<int>(expected.back().ordinals.size());
      wanted.physical_freed += cache.held(this_lane) - static_cast<int>(expected.back().ordinals.size());
    }
    auto const before = cache.save();
    kv::apply_stats stats{7, 7, 7};
    kv::apply(exec, kv::drop_blocks{cache.list_table(), cache.freed_list()}, plan, view, columns, &stats);
    RC_ASSERT(stats == wanted);
    RC_ASSERT(cache.memory == before.memory);
    RC_ASSERT(cache.in_flight == before.tables[5]);
    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      auto const& left = expected[as_size(i)];
      auto const row = cache.row(cache.list, this_lane, cache.places);
      auto const row_before = cache.row(before.tables[0], this_lane, cache.places);
      RC_ASSERT(cache.held(this_lane) == static_cast<int>(left.ordinals.size()));
      RC_ASSERT(std::equal(left.units.begin(), left.units.end(), row.begin()));
      auto const behind = row.begin() + static_cast<std::ptrdiff_t>(left.units.size());
      RC_ASSERT(std::equal(left.freed.begin(), left.freed.end(), behind));
      auto const rest = static_cast<std::ptrdiff_t>(left.units.size() + left.freed.size());
      RC_ASSERT(std::equal(row.begin() + rest, row.end(), row_before.begin() + rest));
      int const freed = cache.row(cache.freed_count, this_lane, 1)[0];
      RC_ASSERT(cache.row(cache.freed, this_lane, freed) == left.freed);
      for (std::size_t e = 0; e < left.ordinals.size(); ++e) {
        int const position = positions_before[as_size(i)][as_size(left.ordinals[e])];
        RC_ASSERT(cache.positions(this_lane)[e] == position);
        RC_ASSERT(mass(this_lane)[e] == static_cast<float>(position + this_lane.head));
        kv::place const place = cache.where().at(this_lane, static_cast<int>(e));
        RC_ASSERT(cache.read(true, this_lane, static_cast<int>(place.unit), place.token) ==
                  cache.token_row(true, this_lane, position));
      }
    }
  }
}

}  // namespace

TEST_SUITE("layout/drop_blocks") {
  TEST_CASE("a block goes when nothing in it is kept, and all of what stays is where it was") {
    holds("block tables and lists of a whole batch, lanes that decide together", 200,
          [] { drops_whole_blocks(false, kv::eviction<kv::reduce_lanes<kv::random_scores>>{}); });
    holds("a table for each lane", 200, [] { drops_whole_blocks(true, kv::eviction<kv::random_scores>{}); });
  }

  TEST_CASE("ten entries in blocks of four: keeping 1 and 9 frees the middle block") {
    slot_cache cache({.bound = 12, .page = 4});
    kv::host_executor exec;
    kv::cache view = cache.view();
    kv::eviction<kv::streaming_llm> const ends{.score = {.sinks = 2}, .budget = {3}};
    auto [state, plan] = state_and_plan(exec, ends, view);
    for (int p = 0; p < 10; ++p) {
      cache.write_token(0, p, p);
      kv::append(exec, view, state, {.tokens = 1, .position = p});
    }
    kv::decide(exec, ends, kv::signals{view.lanes}, state, plan);
    int const middle = cache.list[1];
    kv::apply_stats stats;
    kv::apply(exec, kv::drop_blocks{cache.list_table(), cache.freed_list()}, plan, view, state, &stats);
    CHECK(cache.positions({}) == std::vector<int>{0, 1, 2, 3, 8, 9});
    CHECK(stats == kv::apply_stats{.logical_kept = 3, .physical_freed = 4, .attended_length = 6});
    CHECK(cache.freed_count[0] == 1);
    CHECK(cache.freed[0] == middle);
    CHECK(cache.list[2] == middle);
    cache.write_token(0, 10, 10);  // the sequence goes on behind its last entry, in the block that was not full
    kv::append(exec, view, state, {.tokens = 1, .position = 10});
    CHECK(cache.read(true, {}, cache.list[1], 2) == cache.token_row(true, {}, 10));
  }
}
