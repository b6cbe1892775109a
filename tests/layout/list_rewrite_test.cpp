// SPDX-License-Identifier: Apache-2.0
// list_rewrite: the list is shortened, rows stay, slots come back; over a table of slots, one-token blocks, or the list
// of a whole batch.

#include "layout/any_slots.hpp"
#include "reference/layouts.hpp"

namespace {

using namespace kvpolicy_test;

template <class Policy>
void shortens_the_list(bool by_lane, Policy policy) {
  slot_options shape = any_slots(by_lane, 3);
  shape.bound = *rc::gen::element(8, 1, 31, 33);
  slot_cache cache(shape);
  bool const one_token_blocks = !shape.one_list && any_bool();
  kv::host_executor exec(*rc::gen::element(1, 3));
  kv::cache view = cache.view();
  if (one_token_blocks) view.where.kind = kv::locating::block_table;
  auto [state, plan] = state_and_plan(exec, policy, view);
  dice random(shape.seed);
  int length = 0;
  for (int round = 0; round < 3; ++round) {
    append_any(exec, cache, view, state, random, length);
    length += shape.bound;
    policy.budget.tokens = random.below(shape.bound + 1);
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    std::vector<reference::layout_result> expected;
    std::vector<std::vector<int>> positions_before;
    kv::apply_stats wanted;
    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      std::vector<int> const kept = staying(cache, plan.keep(), i);
      wanted.logical_kept += static_cast<int>(kept.size()) - cache.held(this_lane) + cache.committed(this_lane);
      expected.push_back(reference::listed_only(cache.listed(this_lane), cache.held(this_lane), kept));
      positions_before.push_back(cache.positions(this_lane));
      wanted.physical_freed += static_cast<int>(expected.back().freed.size());
      wanted.attended_length += static_cast<int>(kept.size());
    }
    auto const before = cache.save();
    kv::apply_stats stats{1, 2, 3};
    kv::apply(exec, kv::list_rewrite{.list = cache.list_table(), .freed = cache.freed_list()}, plan, view, state,
              &stats);
    RC_ASSERT(stats == wanted);
    RC_ASSERT(cache.memory == before.memory);
    RC_ASSERT(cache.map == before.tables[1]);
    for (int i = 0; i < cache.lane_count(); ++i) {
      kv::lane const this_lane = cache.lane_at(i);
      auto const& left = expected[as_size(i)];
      RC_ASSERT(cache.listed(this_lane) == left.units);
      auto freed = cache.row(cache.freed, this_lane, cache.row(cache.freed_count, this_lane, 1)[0]);
      auto const row = cache.row(cache.list, this_lane, cache.places);
      std::vector<int> behind(row.begin() + cache.held(this_lane),
                              row.begin() + cache.held(this_lane) + std::ssize(left.freed));
      auto wanted_freed = left.freed;
      for (auto* each : {&freed, &behind, &wanted_freed}) std::sort(each->begin(), each->end());
      RC_ASSERT(freed == wanted_freed);
      RC_ASSERT(behind == wanted_freed);
      auto const row_before = cache.row(before.tables[0], this_lane, cache.places);
      auto const rest = cache.held(this_lane) + std::ssize(left.freed);
      RC_ASSERT(std::equal(row.begin() + rest, row.end(), row_before.begin() + rest));
      for (std::size_t e = 0; e < left.ordinals.size(); ++e) {
        RC_ASSERT(cache.positions(this_lane)[e] == positions_before[as_size(i)][as_size(left.ordinals[e])]);
      }
    }
  }
}

}  // namespace

TEST_SUITE("layout/list_rewrite") {
  TEST_CASE("the list names what is kept, the rest stands behind it and is handed back, rows stay") {
    holds("one list for all lanes", 200,
          [] { shortens_the_list(false, kv::eviction<kv::reduce_lanes<kv::random_scores>>{}); });
    holds("a list for each lane", 200, [] { shortens_the_list(true, kv::eviction<kv::random_scores>{}); });
  }
}
