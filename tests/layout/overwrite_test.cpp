// SPDX-License-Identifier: Apache-2.0
// overwrite: few rows move, entries stay in order, and the lane lives in its lowest slots.

#include "layout/any_slots.hpp"
#include "reference/layouts.hpp"

namespace {

using namespace kvpolicy_test;

/// How many rows of a lane, in these slots of its sequence, hold other bytes than before.
int rows_written(slot_cache& cache, std::vector<std::byte> const& before, kv::lane this_lane, bool keys) {
  int written = 0;
  auto const width = as_size(keys ? cache.k_row : cache.v_row);
  for (int const unit : cache.row(cache.list, this_lane, cache.places)) {
    std::byte const* const now = cache.bytes(keys, this_lane, unit);
    written += std::memcmp(now, before.data() + (now - cache.memory.data()), width) != 0 ? 1 : 0;
  }
  return written;
}

template <class Policy>
void fills_holes(bool by_lane, Policy policy) {
  slot_options shape = any_slots(by_lane, 3);
  shape.model.head_dim = *rc::gen::element(4, 1, 33);
  shape.model.value_dim = *rc::gen::element(0, 3);
  shape.bound = *rc::gen::element(8, 1, 31, 33);
  shape.element = any_float();
  slot_cache cache(shape);
  kv::host_executor exec(*rc::gen::element(1, 3));
  kv::cache view = cache.view();
  auto [state, plan] = state_and_plan(exec, policy, view);
  dice random(shape.seed);
  bool const one_in_one_out = any_bool();
  std::vector<int> next(as_size(shape.sequences), 0);
  for (int round = 0; round < (one_in_one_out ? 20 : 5); ++round) {
    for (int s = 0; s < shape.sequences; ++s) {
      int const capacity = shape.bound - cache.held({s, 0, 0});  // absolute budgets: lanes hold equally many
      int const drafts = cache.in_flight[as_size(s)] = 0;
      int const tokens = one_in_one_out && round > 0 ? std::min(capacity, 1) : random.below(capacity + 1);
      int const last = drafts + random.below(3);
      for (int t = 0; t < tokens; ++t) {
        int& position = next[as_size(s)];
        if (position >= cache.map_row) continue;
        cache.write_token(s, position, position);
        kv::append(exec, view, state, {s, 1, position++, t >= tokens - last});
      }
    }
    policy.budget.tokens = one_in_one_out ? shape.bound - 1 : random.below(shape.bound + 1);
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    std::vector<reference::layout_result> expected;
    std::vector<std::vector<int>> positions_before;
    std::int64_t dropped_entries = 0;
    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      std::vector<int> const kept = staying(cache, plan.keep(), i);
      expected.push_back(reference::overwritten(cache.listed(this_lane), cache.held(this_lane), kept));
      positions_before.push_back(cache.positions(this_lane));
      dropped_entries += cache.held(this_lane) - static_cast<int>(kept.size());
    }
    auto const before = cache.save();
    auto const lists_before = cache.list;
    kv::apply_stats stats;
    kv::apply(exec, kv::overwrite{cache.list_table()}, plan, view, state, &stats);
    RC_ASSERT(stats.physical_freed == dropped_entries);
    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      auto const& wanted = expected[as_size(i)];
      int const dropped = static_cast<int>(wanted.freed.size());
      auto const row = cache.row(cache.list, this_lane, cache.places);
      for (bool const keys : {true, false}) RC_ASSERT(rows_written(cache, before.memory, this_lane, keys) <= dropped);
      RC_ASSERT(cache.held(this_lane) == static_cast<int>(wanted.ordinals.size()));
      for (std::size_t e = 0; e < wanted.ordinals.size(); ++e) {
        int const position = positions_before[as_size(i)][as_size(wanted.ordinals[e])];
        RC_ASSERT(cache.positions(this_lane)[e] == position);
        RC_ASSERT((wanted.units[e] == -1 || wanted.units[e] == row[e]));
        RC_ASSERT(cache.read(true, this_lane, row[e]) == cache.token_row(true, this_lane, position));
        RC_ASSERT(cache.read(false, this_lane, row[e]) == cache.token_row(false, this_lane, position));
      }
      auto const behind = row.begin() + cache.held(this_lane);
      RC_ASSERT(std::equal(wanted.freed.begin(), wanted.freed.end(), behind));  // ascending
      auto sorted_now = row;
      auto sorted_before = cache.row(lists_before, this_lane, cache.places);
      RC_ASSERT(std::equal(behind + dropped, row.end(), sorted_before.begin() + cache.held(this_lane) + dropped));
      std::sort(sorted_now.begin(), sorted_now.end());
      std::sort(sorted_before.begin(), sorted_before.end());
      RC_ASSERT(sorted_now == sorted_before);
    }
  }
}

}  // namespace

TEST_SUITE("layout/overwrite") {
  TEST_CASE("no more rows move than entries were dropped, in order through the list, freed slots behind, ascending") {
    holds("one list for all lanes, which decide together", 150,
          [] { fills_holes(false, kv::eviction<kv::reduce_lanes<kv::random_scores>>{}); });
    holds("a list for each lane", 150, [] { fills_holes(true, kv::eviction<kv::random_scores>{}); });
  }

  TEST_CASE("one in, one out: a single row is written") {
    slot_cache cache({.bound = 8});
    kv::host_executor exec;
    kv::eviction<kv::streaming_llm> const policy{.score = {.sinks = 1}, .budget = {7}};
    kv::cache view = cache.view();
    auto [state, plan] = state_and_plan(exec, policy, view);
    for (int p = 0; p < 30; ++p) {
      cache.write_token(0, p, p);
      kv::append(exec, view, state, {.tokens = 1, .position = p});
      kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
      auto const before = cache.memory;
      kv::apply_stats stats;
      kv::apply(exec, kv::overwrite{cache.list_table()}, plan, view, state, &stats);
      CHECK(rows_written(cache, before, {}, true) <= (p < 7 ? 0 : 1));
      int const stays = std::min(p + 1, 7);
      CHECK(stats == kv::apply_stats{.logical_kept = stays, .physical_freed = p < 7 ? 0 : 1, .attended_length = stays});
    }
    CHECK(cache.positions({}) == std::vector<int>{0, 24, 25, 26, 27, 28, 29});
  }

  TEST_CASE("a slot that two entries have, in one list or in two, is refused; so is one that is not in the pool") {
    for (int const sequences : {1, 3}) {
      for (int const heads : {1, 2}) {
        INFO("sequences ", sequences, ", heads ", heads);
        slot_cache cache({.model = {.layers = 2, .query_heads = heads, .kv_heads = heads, .head_dim = 4},
                          .sequences = sequences,
                          .bound = 8,
                          .by_lane = true});
        kv::host_executor exec(2);
        kv::eviction const policy{.score = kv::random_scores{}, .budget = kv::per_lane{7}, .pick = kv::lowest_one{}};
        kv::cache view = cache.view();
        auto [state, plan] = state_and_plan(exec, policy, view, kv::overwrite{cache.list_table()});
        for (int s = 0; s < sequences; ++s) kv::append(exec, view, state, {.sequence = s, .tokens = 8, .position = 0});
        kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
        kv::lane const last{sequences - 1, 1, heads - 1};
        int const dropped = plan.keep().listed(view.lanes.index(last)).front();
        auto const good = cache.list;
        auto const lists = cache.list_table();
        auto const refused = [&](kv::lane at, int entry, int slot, char const* why) {
          lists.row(at)[entry] = slot;
          auto const before = cache.list;
          CHECK_THROWS_WITH_AS(kv::apply(exec, kv::overwrite{lists}, plan, view, state), doctest::Contains(why),
                               kv::invalid_argument);
          CHECK(cache.list == before);
          CHECK(cache.held(last) == 8);
          cache.list = good;
        };
#if defined(KVPOLICY_TEST_ON_DEVICE)
        char const* const in_list = "two entries name one slot that is not shared";
        char const* const in_two = in_list;
        char const* const outside = "a slot is out of the pool";
#else
        char const* const in_list = "an entry before it has that slot";
        char const* const in_two = "another sequence has that slot";
        char const* const outside = "the pool has";
#endif
        int const shared = lists.row(last)[dropped];
        refused(last, (dropped + 1) % 8, shared, in_list);
        refused(last, (dropped + 1) % 8, lists.row(last)[(dropped + 2) % 8], in_list);
        if (sequences > 1) {
          refused({0, 1, heads - 1}, 0, shared, in_two);
          refused({0, 1, heads - 1}, 7, lists.row(last)[(dropped + 1) % 8], in_two);
        }
        refused(last, (dropped + 1) % 8, cache.units, outside);
        refused(last, (dropped + 1) % 8, -1, outside);
        kv::apply(exec, kv::overwrite{lists}, plan, view, state);
        CHECK(cache.held(last) == 7);
        CHECK(lists.row(last)[7] == shared);
      }
    }
  }
}
