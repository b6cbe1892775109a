// SPDX-License-Identifier: Apache-2.0
// Lanes with `order`: the newest entry takes the place of the dropped one, and every decision is that of ordered lanes.

#include "layout/lane_orders.hpp"

namespace {

using namespace kvpolicy_test;

/// A cache with `order` or without, in slots, in pages or in one list for all lanes of a sequence.
struct served {
  served(slot_options const& how, bool with_order) : cache(how), view(with_order ? cache.view(order) : cache.view()) {}
  slot_cache cache;
  std::vector<kv::lane_order> order;
  kv::cache view;

  [[nodiscard]] std::vector<int> sorted(kv::lane one) const {
    std::vector<int> all = cache.positions(one);
    std::sort(all.begin(), all.end());
    return all;
  }
  /// Every entry's rows are those of its position, wherever they are, and the order is as it says.
  void check() {
    RC_ASSERT(cache.rows_follow());
    for (int i = 0; i < cache.lane_count() && !order.empty(); ++i) {
      kv::lane const one = cache.lane_at(i);
      std::vector<int> const positions = cache.positions(one);
      kv::lane_order const now = view.lanes.order_of(one);
      auto const all = sorted(one);
      int const count = static_cast<int>(all.size());
      RC_ASSERT(now.newest_of(positions.data(), count) == (count > 0 ? all.back() : -1));
      for (int r = 0; now.is_ring() && r < count; ++r) {
        RC_ASSERT(positions[as_size(now.ordinal_of(r))] == all[as_size(r)]);
      }
      kv::lane_entries const of{one, count, 0, positions.data(), now};
      for (int const limit : {0, 1, 3, 7, count > 2 ? all[2] : 5, count > 0 ? all.back() : 9, 1000}) {
        auto const before = std::lower_bound(all.begin(), all.end(), limit) - all.begin();
        RC_ASSERT(of.first_at(limit) == before);
      }
    }
  }
};

slot_options any_shape() { return any_lane_orders(80); }

/// Ordered lanes, where every later entry moves up, against lanes with `order`, step by step: appends, drafts that are
/// committed or rolled back, decisions, and now and then a sorting.
template <class Policy>
void decides_alike(Policy const& policy, slot_options how) {
  how.page = 1;
  served ordered(how, false);
  served list(how, true);
  if (how.sequences == 1 && any_bool()) how.page = 3;
  served rows(how, true);
  kv::host_executor exec(*rc::gen::element(1, 3), *rc::gen::element(kv::isa::portable, kv::best_isa()));
  auto [ordered_state, ordered_plan] = state_and_plan(exec, policy, ordered.view, kv::overwrite{});
  auto [list_state, list_plan] = state_and_plan(exec, policy, list.view, kv::overwrite{});
  auto [rows_state, rows_plan] = state_and_plan(exec, policy, rows.view, kv::overwrite{});
  dice random(how.seed);
  std::vector<int> next(as_size(how.sequences), 0);
  for (int round = 0; round < 60; ++round) {
    std::vector<float> born(as_size(ordered.cache.lane_count()) * 3, 0);
    std::vector<int> tokens(as_size(ordered.cache.lane_count()));
    for (int s = 0; s < how.sequences; ++s) {
      int const capacity = how.bound - ordered.cache.held({s, 0, 0});
      bool const drafts = random.below(4) == 0;
      int const some = std::min(capacity, round == 0 ? how.bound / 2 : random.below(drafts ? 4 : 3));
      int& position = next[as_size(s)];
      int const first = position;
      position += random.below(8) == 0 ? 2 : 0;  // a position that no entry has
      int const begin = position;
      for (int t = 0; t < some; ++t, ++position) {
        if (position >= ordered.cache.map_row) return;
        for (served* of : {&ordered, &list, &rows}) {
          of->cache.write_token(s, position, position);
          auto& state = of == &ordered ? ordered_state : of == &list ? list_state : rows_state;
          kv::append(exec, of->view, state, {s, 1, position, drafts});
        }
      }
      int const rejected = drafts && some > 0 ? random.below(some + 1) : 0;
      for (served* of : {&ordered, &list, &rows}) {
        auto& state = of == &ordered ? ordered_state : of == &list ? list_state : rows_state;
        if (rejected > 0) kv::truncate(exec, of->view, state, s, position - rejected);
        if (drafts) kv::commit(exec, of->view, s, some - rejected);
      }
      position -= rejected;
      if (some == 0) position = first;
      for (int i = 0; i < ordered.cache.lane_count(); ++i) {
        if (ordered.cache.lane_at(i).sequence != s) continue;
        tokens[as_size(i)] = std::min(3, some - rejected);
        int const stored = std::min(3, some - rejected);
        for (int t = 0; t < stored; ++t) {
          born[as_size(i * 3 + t)] = number_of(i, begin + some - rejected - stored + t, 1);
        }
      }
    }
    auto const decide = [&](served& of, auto& state, auto& plan) {
      kv::log_beta gate;
      gate.base = reinterpret_cast<std::byte const*>(born.data());
      gate.entry = 4;
      gate.head = 12;
      gate.layer = gate.head * how.model.kv_heads;
      gate.sequence = gate.layer * how.model.layers;
      gate.entries = 3;
      std::int64_t const head = 1;
      gate.counts = {tokens.data(), head * how.model.kv_heads * how.model.layers, how.model.kv_heads, head};
      masses const mass(of.cache);
      kv::signals const in{of.view.lanes, kv::keys_of(of.view), gate, mass.given};
      observe_unless_told(exec, policy, in, state, plan);
    };
    decide(ordered, ordered_state, ordered_plan);
    decide(list, list_state, list_plan);
    decide(rows, rows_state, rows_plan);
    RC_ASSERT(*list_plan.keep().report == *ordered_plan.keep().report);
    RC_ASSERT(*rows_plan.keep().report == *ordered_plan.keep().report);
    kv::apply_stats stats[3];
    kv::apply(exec, kv::overwrite{ordered.cache.list_table()}, ordered_plan, ordered.view, ordered_state, &stats[0]);
    kv::apply(exec, kv::overwrite{list.cache.list_table()}, list_plan, list.view, list_state, &stats[1]);
    kv::apply(exec, kv::overwrite{}, rows_plan, rows.view, rows_state, &stats[2]);
    RC_ASSERT((stats[0] == stats[1] && stats[0] == stats[2]));
    for (kv::lane const one : lanes_of(ordered.cache)) {
      RC_ASSERT(list.sorted(one) == ordered.cache.positions(one));
      RC_ASSERT(rows.sorted(one) == ordered.cache.positions(one));
    }
    list.check();
    rows.check();
    if (random.below(12) == 0) {
      kv::restore_order(exec, list.view, list_state, list.cache.list_table());
      bool full = false;
      for (int i = 0; i < rows.cache.lane_count(); ++i)
        full = full || rows.cache.held(rows.cache.lane_at(i)) == how.bound;
      if (!full) kv::restore_order(exec, rows.view, rows_state);
      list.check();
      rows.check();
      for (kv::lane const one : lanes_of(list.cache)) {
        RC_ASSERT(list.cache.positions(one) == ordered.cache.positions(one));
        RC_ASSERT((full || rows.cache.positions(one) == ordered.cache.positions(one)));
      }
    }
  }
}

template <class Score>
void with_protections(Score const& score) {
  slot_options const how = any_shape();
  kvpolicy_test::with_protections(how, score, [&](auto const& policy) { decides_alike(policy, how); });
}

}  // namespace

TEST_SUITE("layout/lane_order") {
  TEST_CASE("every policy that drops one entry decides as in ordered lanes, and what moves are rows of one entry") {
    holds("streaming_llm", 40, [] { with_protections(kv::streaming_llm{.sinks = *rc::gen::inRange(0, 6)}); });
    holds("random", 30, [] { with_protections(kv::random_scores{}); });
    holds("knorm", 30, [] { with_protections(kv::recorded_knorm{}); });
    holds("trim_kv", 30, [] { with_protections(kv::trim_kv{.age_offset = 1, .window = *rc::gen::inRange(0, 4)}); });
    holds("h2o", 40, [] { with_protections(kv::h2o{.recent = *rc::gen::inRange(-1, 9)}); });
  }

#if !defined(KVPOLICY_TEST_ON_DEVICE)  // other picks refuse an order there
  TEST_CASE("one list for all heads, which decide together") {
    holds("tova", 60, [] {
      slot_options how = any_shape();
      how.by_lane = false;
      how.page = 1;
      how.model.layers = 1;
      served ordered(how, false);
      served list(how, true);
      kv::host_executor exec;
      kv::eviction const policy{.score = kv::reduce_lanes{kv::random_scores{}, kv::granularity::sequence},
                                .budget = kv::per_lane{how.bound - 1},
                                .pick = kv::lowest_one{}};
      auto [ordered_state, ordered_plan] = state_and_plan(exec, policy, ordered.view, kv::overwrite{});
      auto [list_state, list_plan] = state_and_plan(exec, policy, list.view, kv::overwrite{});
      for (int p = 0; p < 2 * how.bound; ++p) {
        for (int s = 0; s < how.sequences; ++s) {
          list.cache.write_token(s, p, p);
          ordered.cache.write_token(s, p, p);
          kv::append(exec, list.view, list_state, {s, 1, p});
          kv::append(exec, ordered.view, ordered_state, {s, 1, p});
        }
        kv::decide(exec, policy, kv::signals{ordered.view.lanes}, ordered_state, ordered_plan);
        kv::apply(exec, kv::overwrite{ordered.cache.list_table()}, ordered_plan, ordered.view, ordered_state);
        bool const ascends =
            std::all_of(list.order.begin(), list.order.end(), [](auto each) { return each.ascends(); });
        if (!ascends) {
          RC_ASSERT(error_of([&] {
                      kv::decide(exec, policy, kv::signals{list.view.lanes}, list_state, list_plan);
                    }).find("restore_order sorts them") != std::string::npos);
          kv::restore_order(exec, list.view, list_state, list.cache.list_table());
        }
        kv::decide(exec, policy, kv::signals{list.view.lanes}, list_state, list_plan);
        kv::apply(exec, kv::overwrite{list.cache.list_table()}, list_plan, list.view, list_state);
        list.check();
        for (int i = 0; i < list.cache.lane_count(); ++i) {
          RC_ASSERT(list.sorted(list.cache.lane_at(i)) == ordered.cache.positions(list.cache.lane_at(i)));
        }
      }
    });
  }
#endif

  TEST_CASE("tova decides alike, also a second time without a new token") {
    slot_options const how{.model = {2, 4, 2, 8}, .bound = 9, .by_lane = true};
    served ordered(how, false);
    served list(how, true);
    kv::host_executor exec;
    kv::eviction const policy{.score = kv::tova{}, .budget = kv::per_lane{3}, .pick = kv::lowest_one{}};
    auto [ordered_state, ordered_plan] = state_and_plan(exec, policy, ordered.view, kv::overwrite{});
    auto [list_state, list_plan] = state_and_plan(exec, policy, list.view, kv::overwrite{});
    std::vector<float> rows(2 * 4 * 8);
    dice random(5);
    for (int p = 0; p < 30; ++p) {
      for (float& each : rows) each = static_cast<float>(random.between(-64, 64)) / 16.0f;
      int const position[1] = {p};
      auto const both = [&](served& of, auto& state, auto& plan, bool first) {
        kv::signals const in{of.view.lanes, kv::keys_of(of.view), kv::queries_of(rows.data(), how.model, 1, position)};
        if (first) {
          of.cache.write_token(0, p, p);
          kv::append(exec, of.view, state, {.tokens = 1, .position = p});
          kv::observe(exec, policy, in, state);
        }
        if (p < 7) return;
        kv::decide(exec, policy, in, state, plan);
        kv::apply(exec, kv::overwrite{of.cache.list_table()}, plan, of.view, state);
      };
      int const times = p % 5 == 4 && p > 10 ? 2 : 1;
      for (int time = 0; time < times; ++time) {
        both(ordered, ordered_state, ordered_plan, time == 0);
        both(list, list_state, list_plan, time == 0);
        if (p >= 7) CHECK(list_plan.report() == ordered_plan.report());
        for (int i = 0; i < list.cache.lane_count(); ++i) {
          CHECK(list.sorted(list.cache.lane_at(i)) == ordered.cache.positions(list.cache.lane_at(i)));
        }
      }
    }
  }

  TEST_CASE("recorded norms are those of knorm, bit for bit, zero ones too") {
    slot_cache cache({.model = {1, 1, 1, 8}, .bound = 12, .by_lane = true});
    kv::cache view = cache.view();
    kv::host_executor exec;
    kv::eviction const plain{.score = kv::knorm{}, .budget = kv::per_lane{5}};
    kv::eviction const recorded{.score = kv::recorded_knorm{}, .budget = kv::per_lane{5}};
    auto state = kv::make_state(exec, recorded, view);
    auto plain_state = kv::make_state(exec, plain, view);
    auto plan = kv::make_plan(exec, recorded, view);
    auto plain_plan = kv::make_plan(exec, plain, view);
    for (int p = 0; p < 40; ++p) {
      cache.write_token(0, p, p);
      if (p % 3 == 0)
        cache.write(true, {}, cache.listed({}).size() < 12 ? cache.row(cache.list, {}, 12)[cache.listed({}).size()] : 0,
                    0, reference::row(8, 0.0));
      kv::append(exec, view, state, {.tokens = 1, .position = p});
      kv::signals const in{view.lanes, kv::keys_of(view)};
      observe_and_decide(exec, recorded, in, state, plan);
      kv::decide(exec, plain, in, plain_state, plain_plan);
      auto const a = plan.keep().listed(0);
      auto const b = plain_plan.keep().listed(0);
      CHECK(std::vector(a.begin(), a.end()) == std::vector(b.begin(), b.end()));
      int const count = static_cast<int>(cache.listed({}).size());
      CHECK(std::equal(plan.scores(view.lanes).row(0), plan.scores(view.lanes).row(0) + count,
                       plain_plan.scores(view.lanes).row(0)));
      kv::apply(exec, kv::overwrite{cache.list_table()}, plan, view, state);
    }
  }

#if !defined(KVPOLICY_TEST_ON_DEVICE)  // other picks refuse an order there
  TEST_CASE("what reads the order is refused, changes nothing, and names restore_order") {
    slot_options const how{.bound = 8, .by_lane = true};
    served of(how, true);
    kv::host_executor exec;
    kv::eviction const one{.score = kv::random_scores{}, .budget = kv::per_lane{6}, .pick = kv::lowest_one{}};
    kv::eviction const all{.score = kv::random_scores{}, .budget = kv::per_lane{3}};
    kv::eviction const span{.score = kv::random_scores{},
                            .protect = kv::position_span{1, 3},
                            .budget = kv::per_lane{5},
                            .pick = kv::lowest_one{}};
    auto [state, plan] = state_and_plan(exec, one, of.view, kv::overwrite{});
    auto other = kv::make_plan(exec, all, of.view, kv::compact{});
    for (int p = 0; p < 9; ++p) {
      of.cache.write_token(0, p, p);
      kv::append(exec, of.view, state, {.tokens = 1, .position = p});
      kv::decide(exec, one, kv::signals{of.view.lanes}, state, plan);
      kv::apply(exec, kv::overwrite{of.cache.list_table()}, plan, of.view, state);
    }
    REQUIRE(!of.order[0].ascends());
    auto const before = of.cache.save();
    auto const order = of.order;
    kv::signals const in{of.view.lanes};
    CHECK(error_of([&] { kv::decide(exec, all, in, state, other); }) ==
          "decide: lanes.order = not ascending in layer 0, head 0, but this policy reads entries in the order of their "
          "positions: restore_order sorts them");
    CHECK(error_of([&] { kv::decide(exec, span, in, state, plan); }).find("lanes.order") != std::string::npos);
    int const newest = of.sorted({}).back();
    CHECK(error_of([&] { kv::truncate(exec, of.view, state, 0, newest); }).find("truncate: position = 8") == 0);
    CHECK(error_of([&] { kv::append(exec, of.view, state, {.tokens = 1, .position = newest}); }) ==
          "append: position = 8, but positions ascend and the last is 8");
    std::vector<std::byte> bytes(kv::saved_bytes(exec, of.view, state, 0));
    CHECK(error_of([&] { kv::save(exec, of.view, state, 0, bytes); }).find("save: lanes.order") == 0);
    CHECK(of.cache.save() == before);
    CHECK(of.order == order);
    kv::restore_order(exec, of.view, state, of.cache.list_table());
    CHECK(of.order[0].ascends());
    kv::decide(exec, all, in, state, other);
    kv::apply(exec, kv::overwrite{of.cache.list_table()}, other, of.view, state);
    CHECK(of.cache.held({}) == 3);
    kv::save(exec, of.view, state, 0, bytes);
    kv::reset(exec, of.view, state, 0);
    CHECK(of.order[0] == kv::lane_order{});
    CHECK(error_of([&] {
            kv::cache none = of.view;
            none.lanes.order = {};
            kv::restore_order(exec, none, state, of.cache.list_table());
          }) == "restore_order: lanes.order = null, but then entries are in order");
  }
#endif

  TEST_CASE("a slot outside of the pool is refused, and a fork has the order of its source") {
    slot_options const how{.sequences = 2, .bound = 6, .by_lane = true};
    served of(how, true);
    kv::host_executor exec;
    auto const policy = kv::policies::streaming_llm_decode({.budget = 4, .sinks = 1});
    auto [state, plan] = state_and_plan(exec, policy, of.view, kv::overwrite{});
    auto const step = [&](int s, int p) {
      of.cache.write_token(s, p, p);
      kv::append(exec, of.view, state, {s, 1, p});
      kv::decide(exec, policy, kv::signals{of.view.lanes}, state, plan);
      kv::apply(exec, kv::overwrite{of.cache.list_table()}, plan, of.view, state);
    };
    for (int p = 0; p < 6; ++p) step(0, p);
    REQUIRE(!of.order[0].ascends());
    kv::fork(exec, of.view, state, 0, 1);
    CHECK(of.order[0] == of.order[1]);
    CHECK(of.sorted({0, 0, 0}) == of.sorted({1, 0, 0}));
    step(0, 6);
    step(1, 6);
    CHECK(of.cache.positions({0, 0, 0}) == of.cache.positions({1, 0, 0}));
    of.cache.write_token(0, 7, 7);
    kv::append(exec, of.view, state, {0, 1, 7});
    kv::decide(exec, policy, kv::signals{of.view.lanes}, state, plan);
    int const dropped = plan.keep().listed(0)[0];
    of.cache.list[as_size(dropped)] = 99;
    auto const before = of.cache.save();
    std::string const refused =
        error_of([&] { kv::apply(exec, kv::overwrite{of.cache.list_table()}, plan, of.view, state); });
#if defined(KVPOLICY_TEST_ON_DEVICE)
    CHECK(refused == "apply: list (0) = 99, but a slot is out of the pool");
#else
    CHECK(refused.find("apply: list = 99 at entry ") == 0);
#endif
    CHECK(of.cache.save() == before);
  }

#if !defined(KVPOLICY_TEST_ON_DEVICE)  // other picks refuse an order there
  TEST_CASE("due says what decide would do") {
    holds("due", 60, [] {
      slot_options how = any_shape();
      served of(how, any_bool());
      kv::host_executor exec;
      int const budget = *rc::gen::inRange(0, how.bound + 1);
      int const slack = *rc::gen::inRange(0, 4);
      kv::eviction const policy{.score = kv::trim_kv{.buffer = *rc::gen::inRange(1, 4)},
                                .budget = kv::per_lane{budget},
                                .trigger = kv::over_budget{slack}};
      auto [state, plan] = state_and_plan(exec, policy, of.view, kv::overwrite{});
      std::vector<float> zeros(as_size(of.cache.lane_count() * how.bound), -1.0f);
      std::int64_t const row = how.bound;
      kv::retention const given{
          {zeros.data(), row * how.model.kv_heads * how.model.layers, row * how.model.kv_heads, row}};
      for (int p = 0; p < how.bound; ++p) {
        kv::append(exec, of.view, state, {0, 1, p});
        kv::decide(exec, policy, kv::signals{of.view.lanes, given}, state, plan);
        RC_ASSERT(kv::due(policy, of.view) == (plan.keep().report->triggered > 0));
      }
    });
  }
#endif
}
