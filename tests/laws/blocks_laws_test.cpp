// SPDX-License-Identifier: Apache-2.0
// Where blocks of entries stay or go as one, every layout and every kind of cache holds whole blocks afterwards.

#include "laws/applier_bench.hpp"
#include "laws/more_worlds.hpp"

namespace blocks_laws_test {

using namespace kvpolicy_test;

constexpr int size = 4;

/// True if of each block of `size` entries, of which the last may be shorter, all or none are left.
bool whole_blocks(std::set<int> const& left, int count) {
  for (int begin = 0; begin < count; begin += size) {
    int members = 0;
    for (int e = begin; e < std::min(begin + size, count); ++e) members += left.contains(e) ? 1 : 0;
    if (members != 0 && members != std::min(size, count - begin)) return false;
  }
  return true;
}

using block_score = kv::blocks<kv::reduce_lanes<kv::external>>;

/// The ordinals before the decision of the entries that a lane holds, by the column that follows them.
template <class Layout>
std::vector<int> ordinals_of(bench<Layout, block_score>& now, int i) {
  std::vector<int> made;
  for (int e = 0; e < now.cache.held(now.cache.lane_at(i)); ++e) {
    made.push_back(static_cast<int>(now.mass(i)[e]) - 10 * i);
  }
  return made;
}

/// Decides and checks what is left: the entries of whole blocks, at the places that the cache says, and the drafts.
template <class Layout>
int left_whole(bench<Layout, block_score>& now, int budget) {
  int const committed = now.cache.committed({}), held = now.cache.held({});
  now.decide(budget);
  std::vector<std::vector<int>> kept;
  for (int i = 0; i < now.plan.keep().segments(); ++i) kept.push_back(listed(now.plan.keep(), i));
  (void)now.apply();
  int dropped = 0;
  for (int i = 0; i < now.cache.lane_count(); ++i) {
    kv::lane const this_lane = now.cache.lane_at(i);
    std::vector<int> const ordinals = ordinals_of(now, i);
    std::set<int> left(ordinals.begin(), ordinals.end());
    RC_ASSERT(left.size() == ordinals.size());
    for (int d = committed; d < held; ++d) RC_ASSERT(left.erase(d) == 1);
    RC_ASSERT(whole_blocks(left, committed));
    bool const alone = now.policy.score.score_of.decides == kv::granularity::lane;
    std::vector<int> const& of_segment = kept[as_size(alone ? i : this_lane.sequence)];
    for (int const e : of_segment) RC_ASSERT(left.contains(e));
    // Pages are of as many entries. The page of a draft stays, and nothing else that is not kept.
    bool const shares_page_with_draft = std::same_as<Layout, kv::drop_blocks<>> && committed % size != 0;
    RC_ASSERT(left.size() == of_segment.size() || shares_page_with_draft);
    for (std::size_t e = 0; e < ordinals.size(); ++e) {
      kv::place const at = now.view.where.at(this_lane, static_cast<int>(e));
      RC_ASSERT(now.cache.read(false, this_lane, static_cast<int>(at.unit), at.token) ==
                now.cache.token_row(false, this_lane, 100 * this_lane.sequence + ordinals[e]));
    }
    dropped += committed - static_cast<int>(left.size());
  }
  return dropped;
}

/// TRIM-KV's entries, which a world records, in blocks.
constexpr kv::eviction<kv::blocks<kv::trim_kv>> block_policy{.score = {.score_of = {}, .size = size}, .budget = {9}};

/// Decides about the blocks of a part of a world, and carries the decision out.
void evict_blocks(cache_world& now, view of) {
  auto plan = kv::make_plan(now.exec, block_policy, now.cell.all, kv::compact{});
  kv::cache part = part_of(now.cell.all, of);
  kv::decide(now.exec, block_policy, kv::signals{part.lanes}, *now.cell.state, plan);
  kv::apply(now.exec, kv::compact{}, plan, part, *now.cell.state);
}
void evict_blocks(groups_world& now, view of) {
  auto plans = kv::make_plan(now.exec, block_policy, now.all, kv::compact{});
  kv::layer_groups part = part_of(now.all, of);
  auto const signals_of = [&](int g) { return kv::signals{part.groups[as_size(g)].entries.lanes}; };
  kv::decide(now.exec, block_policy, part, signals_of, now.states, plans);
  kv::apply(now.exec, [](int) { return kv::compact{}; }, plans, part, now.states);
}
void evict_blocks(dual_world& now, view of) {
  auto plan = kv::make_plan(now.exec, block_policy, now.all.pages.entries, kv::compact{});
  kv::dual_cache part = part_of(now.all, of);
  kv::decide(now.exec, block_policy, kv::signals{part.pages.entries.lanes}, now.state.pages, plan);
  kv::apply(now.exec, kv::compact{}, plan, part.pages.entries, now.state.pages);
  kv::ops::release_pages(now.exec, part.pages);
}

/// The positions of each lane's entries. Of a dual cache those of the pages: the window drops nothing by blocks.
std::vector<std::vector<int>> positions_of(world& now, bool dual) {
  std::vector<std::vector<int>> made;
  auto const pieces = now.pieces();
  now.for_each_lane([&](world::piece const& each, kv::lane one) {
    if (dual && each.state == pieces.front().state) return;
    int const* const first = each.all->lanes.position.row(one);
    made.emplace_back(first, first + *each.all->lanes.count.row(one));
  });
  return made;
}

/// Some rounds of steps and evictions: each leaves whole blocks of the entries before it, two of them at most.
template <class World>
void stays_whole(World& now, view of) {
  bool const dual = std::same_as<World, dual_world>;
  int dropped = 0;
  for (int round = 0; round < 3; ++round) {
    for (int t = 0; t < 5; ++t) now.step({0, 1, 1, 1});
    auto const before = positions_of(now, dual);
    evict_blocks(now, of);
    auto const after = positions_of(now, dual);
    REQUIRE(before.size() == after.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
      std::set<int> left;
      for (int const position : after[i]) {
        auto const found = std::find(before[i].begin(), before[i].end(), position);
        REQUIRE(found != before[i].end());
        left.insert(static_cast<int>(found - before[i].begin()));
      }
      CHECK(whole_blocks(left, static_cast<int>(before[i].size())));
      bool const decided = after[i].size() != before[i].size();
      if (decided) CHECK(after[i].size() <= 2 * size);
      dropped += decided ? 1 : 0;
    }
    for (int slot = 1; slot < world::slots; ++slot) {
      if (now.length[as_size(slot)] + 5 < world::bound) continue;
      now.reset_one(slot);
      now.length[as_size(slot)] = 0;
    }
  }
  CHECK(dropped > 0);
}

TEST_SUITE("laws/blocks") {
  TEST_CASE_TEMPLATE_DEFINE("what is left of each lane is whole blocks of its entries, in every layout", Layout,
                            layout_law) {
    int dropped = 0;
    holds(Layout::name, 60, [&] {
      slot_options const shape = any_shape(std::same_as<Layout, kv::drop_blocks<>>);
      auto const how = *rc::gen::element(kv::reduction::mean, kv::reduction::max, kv::reduction::sum);
      bench<Layout, block_score> now(shape, {{.score_of = {}, .decides = deciding(shape)}, size, how});
      if (now.cache.committed({}) < size) return;                           // its entries are chosen one by one
      bool const has_tail = now.cache.committed({}) % size != 0;            // which some lanes may keep, and others not
      if (has_tail && std::same_as<Layout, kv::compact_rerotated>) return;  // it needs equally many in each
      dropped += left_whole(now, *rc::gen::inRange(0, now.cache.held({}) + 1));
    });
    CHECK(dropped > 0);
  }
  TEST_CASE_TEMPLATE_APPLY(layout_law, every_applier);

  TEST_CASE("what is left of each lane is whole blocks of its entries, in every kind of cache") {
    for (view const of : {view::whole, view::sequences, view::layers, view::list}) {
      INFO(std::string(text_of(of)));
      cache_world plain(false), shared(true);
      stays_whole(plain, of);
      stays_whole(shared, of);
      dual_world dual;
      stays_whole(dual, of);
      groups_world groups;
      if (of != view::layers) stays_whole(groups, of);
    }
  }
}

}  // namespace blocks_laws_test
