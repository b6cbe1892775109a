// SPDX-License-Identifier: Apache-2.0
// Blocks that several sequences share: which of them fall free, and where rows may be moved. The laws hold for every
// kind of table, and for calls about all slots, a range of them or a list.
#include "layout/shared_slots.hpp"

namespace {

using namespace kvpolicy_test;

enum class part { all, range, list };

/// A decision about a part of the slots, and the part.
template <class Policy>
struct decided {
  decided(table_kind tables, part which, Policy policy_, std::uint64_t seed)
      : on(tables, *rc::gen::element(2, 3, 4), seed), policy(policy_) {
    dice random(seed + 1);
    for (int s = 0; s < on.slots; ++s) {
      kv::append(exec, all, state, {.sequence = s, .tokens = on.lengths[as_size(s)], .position = 0});
    }
    for (int s = on.slots - 1; s >= 0; --s) {
      if (random.chance(50) || (s == 0 && listed.empty())) listed.push_back(s);
    }
    called = listed;
    view = kv::only(all, slots());
    if (which != part::list) {
      int const first = which == part::all ? 0 : random.below(on.slots);
      int const end = which == part::all ? on.slots : first + 1 + random.below(on.slots - first);
      view = all;
      view.lanes = which == part::all ? all.lanes : all.lanes.sequences_only(first, end);
      called.clear();
      for (int s = first; s < end; ++s) called.push_back(s);
    }
    is_list = which == part::list;
    plan.emplace(kv::make_plan(exec, policy, view));
    kv::decide(exec, policy, kv::signals{view.lanes}, state, *plan);
  }
  kv::slot_list slots() { return {.slots = listed.data(), .size = static_cast<int>(listed.size())}; }
  template <class T>
  kv::by_lane<T> rows(kv::by_lane<T> of) {
    return is_list ? kv::only(of, slots()) : of;
  }
  kv::unit_list rows(kv::unit_list const& of) { return {rows(of.unit), rows(of.count)}; }
  [[nodiscard]] bool has(int slot) const { return std::find(called.begin(), called.end(), slot) != called.end(); }
  /// The numbers of kept rows of each lane of the call, by the slot of the lane.
  [[nodiscard]] std::map<shared_slots::user, std::vector<float>> kept() {
    std::map<shared_slots::user, std::vector<float>> made;
    kv::keep_set const keep = plan->keep();
    for (int i = 0; i < keep.lanes.size(); ++i) {
      kv::lane const one = keep.lanes.at(i);
      auto& numbers = made[{kv::slot_of(keep.lanes.slots, one.sequence), one.layer, one.head}];
      for (int const e : keep.listed(kv::segment_of(keep.lanes, keep.decides, i)))
        numbers.push_back(value(view, one, e));
    }
    return made;
  }
  /// The numbers of all rows of the lanes of some slots.
  [[nodiscard]] std::map<shared_slots::user, std::vector<float>> held(bool of_the_call) {
    std::map<shared_slots::user, std::vector<float>> made;
    for (kv::lane const one : lanes_of(all.lanes)) {
      if (has(one.sequence) != of_the_call) continue;
      auto& numbers = made[{one.sequence, one.layer, one.head}];
      for (int e = 0; e < *all.lanes.count.row(one); ++e) numbers.push_back(value(all, one, e));
    }
    return made;
  }
  static float value(kv::cache const& in, kv::lane one, int e) {
    return *reinterpret_cast<float const*>(in.v.row(one.layer, in.where.at(one, e), one.head));
  }
  template <class Applier>
  std::string apply(Applier const& how) {
    return error_of([&] { kv::apply(exec, how, *plan, view, state, &stats); });
  }

  shared_slots on;
  Policy policy;
  kv::host_executor exec{*rc::gen::element(1, 3)};
  kv::cache all = on.view();
  kv::state<kv::host_executor> state = kv::make_state(exec, policy, all);
  std::optional<kv::plan<kv::host_executor>> plan;
  std::vector<int> listed, called;
  kv::cache view;
  bool is_list = false;
  kv::apply_stats stats;
};

using by_token = kv::eviction<kv::reduce_lanes<kv::random_scores>>;
using by_lane = kv::eviction<kv::random_scores>;

template <class Law>
void for_every_table_and_part(Law const& law) {
  for (table_kind const tables : {table_kind::block_table, table_kind::slot_map, table_kind::csr_pages,
                                  table_kind::by_lane, table_kind::one_pool}) {
    for (part const which : {part::all, part::range, part::list}) {
      INFO("tables ", static_cast<int>(tables), ", part ", static_cast<int>(which));
      holds("tables and a part of the slots", 40, [&] { law(tables, which); });
    }
  }
}
template <class Policy>
Policy any_policy() {
  Policy policy;
  policy.budget.tokens = *rc::gen::inRange(0, 16);
  return policy;
}
std::uint64_t any_seed() { return *rc::gen::inRange<std::uint64_t>(1, 1u << 20); }

/// The units that nobody names any more after a call and that somebody named before, each with the entries of one user.
std::set<std::pair<int, int>> left(auto const& before, auto const& after) {
  std::set<std::pair<int, int>> gone;
  for (auto const& [unit, users] : before) {
    if (after.find(unit) == after.end()) gone.insert(unit);
  }
  return gone;
}

}  // namespace

TEST_SUITE("layout/shared_blocks") {
  TEST_CASE("drop_blocks frees what nobody reads any more, each block once") {
    for_every_table_and_part([](table_kind tables, part which) {
      if (tables == table_kind::slot_map) return;  // it has no blocks
      decided<by_token> now(tables, which, any_policy<by_token>(), any_seed());
      auto const before = now.on.users();
      int const other = *rc::gen::inRange(0, now.on.units);  // a prefix cache has this block
      auto const shared = [other](int unit) { return unit == other; };
      RC_ASSERT(now.apply(kv::drop_blocks<decltype(shared)>{.table = now.rows(now.on.list()),
                                                            .freed = now.rows(now.on.freed_list()),
                                                            .shared = shared,
                                                            .released = now.rows(now.on.released_list())}) == "");
      auto const after = now.on.users();
      std::set<std::pair<int, int>> freed;
      for (int const s : now.called) {
        for (int r = 0; r < now.on.rows / now.on.slots; ++r) {
          shared_slots::user const one{s, r / now.on.heads, r % now.on.heads};
          auto const at = as_size(s * (now.on.rows / now.on.slots) + r);
          std::multiset<int> listed, gone;
          for (int i = 0; i < now.on.freed_count[at]; ++i) {
            int const unit = now.on.row(now.on.freed, one)[as_size(i)];
            RC_ASSERT(unit != other);
            RC_ASSERT(freed.insert({now.on.pool_of(one), unit}).second);
            listed.insert(unit);
          }
          for (int i = 0; i < now.on.released_count[at]; ++i)
            listed.insert(now.on.row(now.on.released, one)[as_size(i)]);
          for (auto const& [unit, users] : before) {
            bool const had = std::find(users.begin(), users.end(), one) != users.end();
            auto const still = after.find(unit);
            bool const has = still != after.end() &&
                             std::find(still->second.begin(), still->second.end(), one) != still->second.end();
            if (had && !has) gone.insert(unit.second);
          }
          RC_ASSERT(listed == gone);
        }
      }
      auto expected = left(before, after);
      for (int pool = 0; pool < 4; ++pool) expected.erase({pool, other});
      RC_ASSERT(freed == expected);
      long const entries = static_cast<long>(freed.size()) * now.on.page;
      long const lanes = now.on.lanes_apart ? 1 : now.on.layers * now.on.heads;
      RC_ASSERT(now.stats.physical_freed <= entries * lanes);  // the last block of a sequence need not be full
      RC_ASSERT(now.stats.physical_freed >=
                    (entries - static_cast<long>(now.called.size()) * (now.on.page - 1)) * lanes ||
                now.on.lanes_apart);
      RC_ASSERT(now.stats.physical_freed >= static_cast<long>(freed.size()) * lanes);
    });
  }

  TEST_CASE("an applier that moves rows moves those of the plan, or refuses and changes nothing") {
    for_every_table_and_part([](table_kind tables, part which) {
      bool const rerotated = any_bool();
      decided<by_lane> now(tables, which, any_policy<by_lane>(), any_seed());
      auto const wanted = now.kept();
      auto const before = now.on.save();
      auto const users = now.on.users();
      std::string const refused = rerotated ? now.apply(kv::compact_rerotated{}) : now.apply(kv::compact{});
      if (!refused.empty()) {
        RC_ASSERT(now.on.save() == before);
        RC_ASSERT(refused.starts_with("apply: cache.where.table = "));
        bool const shares = std::any_of(users.begin(), users.end(), [&](auto const& unit) {
          return std::count_if(unit.second.begin(), unit.second.end(), [&](auto one) { return now.has(one.slot); }) > 1;
        });
        RC_ASSERT(shares);
        return;
      }
      RC_ASSERT(now.held(true) == wanted);
      long const page = now.on.page, lanes = now.on.lanes_apart ? 1 : now.on.layers * now.on.heads;
      RC_ASSERT(now.stats.physical_freed == static_cast<long>(left(users, now.on.users()).size()) * page * lanes);
    });
  }

  TEST_CASE("after copy_on_write no request loses a row to another one, in the call or outside of it") {
    for_every_table_and_part([](table_kind tables, part which) {
      if (tables == table_kind::csr_pages) return;  // its pages are listed for each forward
      decided<by_lane> now(tables, which, any_policy<by_lane>(), any_seed());
      auto const wanted = now.kept();
      auto const others = now.held(false);
      for (int const s : now.called) {
        std::map<std::pair<int, int>, int> pages;  // of the pools, which have as many free pages each
        kv::copy_on_write(now.exec, now.all, now.on.list(), s, 0, [&](int page) {
          long in_use = 0;
          for (auto const& [unit, users] : now.on.users()) in_use += unit.second == page && users.size() > 1 ? 1 : 0;
          return in_use > 0 ? now.on.next++ : page;
        });
      }
      std::string const refused = now.apply(kv::compact{});
      RC_ASSERT(refused == "");
      RC_ASSERT(now.held(true) == wanted);
      RC_ASSERT(now.held(false) == others);
    });
  }

  TEST_CASE("an applier of lists frees no slot that another sequence of the call reads, and none twice") {
    for (part const which : {part::all, part::range, part::list}) {
      holds("a part of the slots", 60, [&] {
        decided<by_token> now(table_kind::slot_map, which, any_policy<by_token>(), any_seed());
        auto const before = now.on.users();
        auto const shared = [&](int unit) { return before.at({0, unit}).size() > 1; };
        RC_ASSERT(now.apply(kv::list_rewrite<decltype(shared)>{.list = now.rows(now.on.list()),
                                                               .freed = now.rows(now.on.freed_list()),
                                                               .shared = shared,
                                                               .released = now.rows(now.on.released_list())}) == "");
        std::set<int> freed;
        for (int const s : now.called) {
          for (int i = 0; i < now.on.freed_count[as_size(s)]; ++i) {
            int const unit = now.on.row(now.on.freed, {s, 0, 0})[as_size(i)];
            RC_ASSERT(freed.insert(unit).second);
            RC_ASSERT(!now.on.users().contains({0, unit}));
          }
        }
      });
    }
  }

  TEST_CASE("a unit outside of the pool is refused before anything changes") {
    for_every_table_and_part([](table_kind tables, part which) {
      decided<by_token> now(tables, which, any_policy<by_token>(), any_seed());
      int const wrong = *rc::gen::element(-1, now.on.units, 1 << 30);
      int const slot = now.called[as_size(*rc::gen::inRange<int>(0, static_cast<int>(now.called.size())))];
      int const row = slot * (now.on.rows / now.on.slots);
      now.on.at(row, *rc::gen::inRange(0, now.on.used({slot, 0, 0}))) = wrong;
      auto const before = now.on.save();
      auto const refuses = [&](auto const& how) {
        std::string const refused = now.apply(how);
        RC_ASSERT(refused.starts_with("apply: cache.where.table = " + std::to_string(wrong) + " (entry "));
        RC_ASSERT(now.on.save() == before);
      };
      refuses(kv::compact{});
      refuses(kv::compact_rerotated{});
      if (tables != table_kind::slot_map) refuses(kv::drop_blocks{.table = now.rows(now.on.list())});
    });
  }

  TEST_CASE("where two entries of one sequence have a place, no row moves there") {
    for_every_table_and_part([](table_kind tables, part which) {
      decided<by_lane> now(tables, which, any_policy<by_lane>(), any_seed());
      int const slot = now.called.front();
      int const used = now.on.used({slot, 0, 0});
      now.on.at(slot * (now.on.rows / now.on.slots), *rc::gen::inRange(0, used)) =
          now.on.at(slot * (now.on.rows / now.on.slots), *rc::gen::inRange(0, used));
      auto const wanted = now.kept();
      auto const before = now.on.save();
      if (now.apply(kv::compact{}).empty()) {
        RC_ASSERT(now.held(true) == wanted);
      } else {
        RC_ASSERT(now.on.save() == before);
      }
    });
  }

  TEST_CASE("lanes that share a list but hold other tokens are refused where one of them stands for all") {
    shared_slots on(table_kind::slot_map, 1, 3);
    kv::host_executor exec;
    kv::cache view = on.view();
    std::vector<kv::lane_order> order(on.count.size());
    view.lanes.order = {order.data(), on.layers * on.heads, on.heads, 1};
    kv::state<kv::host_executor> state(exec, view.shape, view.lanes);
    kv::append(exec, view, state, {.tokens = 3, .position = 0});
    std::vector<int> map(64, 1);
    kv::dead_slot<> const how{.list = on.list(), .map = {map.data(), 16, 0, 0}, .dead = on.units - 1};
    auto const before = on.save();
    on.count[3] = 2;
    CHECK(error_of([&] { kv::relist(exec, how, view, 0, 3); }) ==
          "relist: lanes.count = 2 in layer 1, head 1, but it shares a row of the list with a lane that holds 3");
    CHECK(
        error_of([&] { kv::restore_order(exec, view, state, on.list()); }) ==
        "restore_order: lanes.count = 2 in layer 1, head 1 of sequence 0, but it shares a row of the list with a lane "
        "that holds 3");
    on.count[3] = 3;
    on.position[as_size(3 * on.bound + 2)] = 7;
    std::string const rule = "lanes.position = other tokens in layer 1, head 1";
    CHECK(error_of([&] { kv::relist(exec, how, view, 0, 3); }).starts_with("relist: " + rule));
    CHECK(error_of([&] { kv::restore_order(exec, view, state, on.list()); }).starts_with("restore_order: " + rule));
    on.position[as_size(3 * on.bound + 2)] = 2;
    CHECK(on.save() == before);
  }

  TEST_CASE("what `shared` throws is thrown before a block leaves") {
    holds("any slots", [] {
      decided<by_token> now(table_kind::block_table, part::all, any_policy<by_token>(), any_seed());
      auto const before = now.on.save();
      auto const throws = [](int unit) -> bool { throw kv::invalid_argument("unit " + std::to_string(unit)); };
      RC_ASSERT(now.apply(kv::drop_blocks<decltype(throws)>{
                    .table = now.on.list(), .freed = now.on.freed_list(), .shared = throws}) != "");
      RC_ASSERT(now.on.save() == before);
    });
  }
}
