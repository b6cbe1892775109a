// SPDX-License-Identifier: Apache-2.0
// What a report says of decisions that rest on nothing, and of lanes that stay over their budget.

#include "support/dual_engine.hpp"

namespace {

using namespace kvpolicy_test;

kv::report counted(std::int64_t triggered, std::int64_t unobserved, std::int64_t over_budget = 0) {
  return {.triggered = triggered, .unobserved = unobserved, .over_budget = over_budget};
}

/// Two sequences, two layers of two lanes, entries at [first, first + count), and query rows where the test says.
struct engine {
  explicit engine(int count = 24, int first = 0)
      : cache({.model = {2, 4, 2, 4}, .sequences = 2, .bound = 40}),
        q(2u * 2 * 4 * 4 * 4, 0.5f),
        numbers(8 * 40, -0.5f) {
    for (int i = 0; i < 8; ++i) {
      std::vector<int> at(as_size(count));
      std::iota(at.begin(), at.end(), first);
      cache.put(cache.lane_at(i), at);
    }
    rows_end_at(first + count - 1);
    entries = count;
  }

  /// Four rows of each sequence, of which the last has this position.
  void rows_end_at(int position) {
    for (int s = 0; s < 2; ++s) {
      for (int r = 0; r < 4; ++r) positions[4 * s + r] = position - 3 + r;
    }
  }
  [[nodiscard]] kv::query_view rows() const {
    return {.base = reinterpret_cast<std::byte const*>(q.data()),
            .dims = 4,
            .sequence = 2 * 4 * 4 * 16,
            .layer = 4 * 4 * 16,
            .head = 4 * 16,
            .row = 16,
            .heads = 4,
            .rows = 4,
            .position = {positions, 4, 0, 0},
            .valid_rows = {valid, 1, 0, 0}};
  }
  [[nodiscard]] kv::log_beta betas() const {
    return {{.base = reinterpret_cast<std::byte const*>(numbers.data()),
             .sequence = 4 * 40 * 4,
             .layer = 2 * 40 * 4,
             .head = 40 * 4,
             .entry = 4,
             .entries = entries}};
  }
  auto signals(kv::lanes const& batch) {
    kv::turn_queries turn;
    static_cast<kv::query_view&>(turn) = rows();
    return kv::signals{batch, kv::keys_of(cache.view()), kv::queries{rows()}, turn, betas()};
  }
  auto signals() { return signals(cache.lanes()); }

  mock_cache cache;
  std::vector<float> q, numbers;
  int positions[8] = {};
  int valid[2] = {4, 4};
  int entries = 0;
};

/// A policy with its state and plan beside an engine.
template <class Policy>
struct decider {
  decider(engine& of, Policy const& by, int threads = 1)
      : beside(of),
        policy(by),
        exec(threads),
        held(kv::make_state(exec, policy, of.cache.view())),
        plan(kv::make_plan(exec, policy, of.cache.view())) {}
  void observe() { kv::observe(exec, policy, beside.signals(), held); }
  template <class... Given>
  kv::report decide(kv::signals<Given...> const& in) {
    kv::decide(exec, policy, in, held, plan);
    return plan.report();
  }
  kv::report decide() { return decide(beside.signals()); }

  engine& beside;
  Policy policy;
  kv::host_executor exec;
  kv::state<kv::host_executor> held;
  kv::plan<kv::host_executor> plan;
};

/// Before anything is observed every decision counts; after one forward none does.
template <class Policy>
void counts_until_observed(Policy const& policy, int segments) {
  CAPTURE(kv::to_string(policy));
  for (int const threads : {1, 3}) {
    engine of;
    decider now(of, policy, threads);
    CHECK(now.decide() == counted(segments, segments));
    now.observe();
    CHECK(now.decide() == counted(segments, 0));
  }
}

template <class Policy>
void never_counts(Policy const& policy) {
  CAPTURE(kv::to_string(policy));
  engine of;
  decider now(of, policy);
  CHECK(now.decide() == counted(8, 0));
}

TEST_SUITE("core/observed") {
  TEST_CASE("a decision before observe counts as unobserved, and one after it does not") {
    counts_until_observed(kv::eviction{.score = kv::snapkv{.window = 3}, .budget = kv::per_lane{8}}, 8);
    counts_until_observed(kv::eviction{.score = kv::h2o{}, .budget = kv::per_lane{8}}, 8);
    counts_until_observed(kv::eviction{.score = kv::tova{}, .budget = kv::per_lane{8}}, 4);
    counts_until_observed(kv::eviction{.score = kv::intent_kv{}, .budget = kv::per_lane{8}}, 2);
    counts_until_observed(kv::eviction{.score = kv::trim_kv{}, .budget = kv::per_lane{8}}, 8);
    counts_until_observed(kv::eviction{.score = kv::trim_kv_norm{}, .budget = kv::per_lane{8}}, 8);
    counts_until_observed(kv::eviction{.score = kv::reduce_lanes{.score_of = kv::h2o{}}, .budget = kv::per_lane{8}}, 2);
  }

  TEST_CASE("of a scorer without recorders and query rows no decision counts as unobserved") {
    never_counts(kv::policies::knorm({.budget = 8}));
    never_counts(kv::policies::streaming_llm({.budget = 8}));
    never_counts(kv::policies::random({.budget = 8}));
  }

  TEST_CASE("a policy that is chosen at run time counts the same") {
    engine of;
    kv::eviction const h2o{.score = kv::h2o{}, .budget = kv::per_lane{8}};
    kv::basic_any_policy<kv::host_executor> const policy(h2o);
    kv::host_executor exec;
    auto [held, plan] = state_and_plan(exec, policy, of.cache.view());
    auto const in = of.signals();
    kv::decide(exec, policy, in, held, plan);
    CHECK(plan.report() == counted(8, 8));
    observe_and_decide(exec, policy, in, held, plan);
    CHECK(plan.report() == counted(8, 0));
    std::vector<float> const nothing(8 * 40);
    auto const given = in.with(in.lanes, kv::attention_mass{{nothing.data(), 160, 80, 40}});
    auto fresh = kv::make_state(exec, policy, of.cache.view());
    kv::decide(exec, policy, given, fresh, plan);
    CHECK(plan.report() == counted(8, 0));
  }

  TEST_CASE("rows of entries that are not there yet are no observation, and rows of an earlier forward are refused") {
#if defined(KVPOLICY_TEST_ON_DEVICE)
    std::vector const ends{30};  // rows of an earlier forward are refused on the host only
#else
    std::vector const ends{30, 3};
#endif
    for (int const end : ends) {
      engine of(20, 7);
      of.rows_end_at(end);
      if (end == 3) {
        decider h2o(of, kv::eviction{.score = kv::h2o{}, .budget = kv::per_lane{8}});
        CHECK(error_of([&] { h2o.observe(); }) ==
              "observe: queries.position = 3 in the last row of sequence 0, but the newest entry is at 26: these rows "
              "are of an earlier forward, or positions do not count from the sequence's start");
        CHECK(h2o.decide() == counted(8, 8));
        continue;
      }
      decider snapkv(of, kv::eviction{.score = kv::snapkv{.window = 3}, .budget = kv::per_lane{8}});
      decider h2o(of, kv::eviction{.score = kv::h2o{}, .budget = kv::per_lane{8}});
      decider tova(of, kv::eviction{.score = kv::tova{}, .budget = kv::per_lane{8}});
      snapkv.observe(), h2o.observe(), tova.observe();
      CAPTURE(end);
      CHECK(snapkv.decide() == counted(8, 8));
      CHECK(h2o.decide() == counted(8, 8));
      CHECK(tova.decide() == counted(4, 4));
      of.rows_end_at(26);
      snapkv.observe(), h2o.observe(), tova.observe();
      CHECK(snapkv.decide() == counted(8, 0));
      CHECK(h2o.decide() == counted(8, 0));
      CHECK(tova.decide() == counted(4, 0));
    }
  }

  TEST_CASE("rows that an engine gives itself are asked as a ring's are: none, too late, too early, some") {
    engine of(20, 7);
    decider now(of, kv::eviction{.score = kv::snapkv{.window = 3}, .budget = kv::per_lane{8}});
    auto const with = [&](kv::query_view const& rows) {
      return now.decide(kv::signals{of.cache.lanes(), kv::keys_of(of.cache.view()), kv::recent_queries{rows}});
    };
    kv::query_view none = of.rows();
    none.rows = 0;
    none.valid_rows = {};
    CHECK(with(none) == counted(8, 8));
    of.valid[1] = 0;  // of the second sequence
    CHECK(with(of.rows()) == counted(8, 4));
    of.valid[1] = 4;
    of.rows_end_at(30);
    CHECK(with(of.rows()) == counted(8, 8));
    of.rows_end_at(6);
    CHECK(with(of.rows()) == counted(8, 8));
    of.rows_end_at(7);
    CHECK(with(of.rows()) == counted(8, 0));
    of.rows_end_at(29);  // of four rows one is the last entry's
    CHECK(with(of.rows()) == counted(8, 0));
  }

  TEST_CASE("where positions of rows do not matter, any row is an observation") {
    engine of;
    of.rows_end_at(100);
    decider now(of, kv::eviction{.score = kv::admitted_attention{.window = 3}, .budget = kv::per_lane{8}});
    auto const in = of.signals().with(of.cache.lanes(), kv::recent_queries{of.rows()});
    CHECK(now.decide(in) == counted(8, 0));
    of.valid[0] = 0;
    CHECK(now.decide(in) == counted(8, 4));
    decider alike(of, kv::eviction{.score = kv::reduce_lanes{.score_of = kv::admitted_attention{.window = 3},
                                                             .decides = kv::granularity::layer},
                                   .budget = kv::per_lane{8}});
    CHECK(alike.decide(in) == counted(4, 2));
  }

  TEST_CASE("lanes that decide together count once, and only if none of them was observed") {
    engine of;
    decider token(of, kv::eviction{.score = kv::reduce_lanes{.score_of = kv::h2o{}}, .budget = kv::per_lane{8}});
    decider global(of, kv::eviction{.score = kv::h2o{}, .budget = kv::per_sequence{.tokens = 8}});
    decider layers(of, kv::eviction{.score = kv::h2o{}, .budget = kv::per_layer{.tokens = 8}});
    CHECK(token.decide() == counted(2, 2));
    CHECK(global.decide() == counted(2, 2));
    CHECK(layers.decide() == counted(4, 4));
    auto const one = of.cache.lanes().layers_only(1, 2);
    kv::observe(token.exec, token.policy, of.signals(one), token.held);
    kv::observe(global.exec, global.policy, of.signals(one), global.held);
    kv::observe(layers.exec, layers.policy, of.signals(one), layers.held);
    CHECK(token.decide() == counted(2, 0));
    CHECK(global.decide() == counted(2, 0));
    CHECK(layers.decide() == counted(4, 2));
  }

  TEST_CASE("a lane at its budget decides nothing, so there is nothing to count") {
    engine of(8);
    decider now(of, kv::eviction{.score = kv::h2o{}, .budget = kv::per_lane{8}});
    CHECK(now.decide() == counted(0, 0));
  }

  TEST_CASE("a log beta of 0 that was told is an observation, and scores +0") {
    engine of;
    of.numbers.assign(of.numbers.size(), 0.0f);
    decider now(of, kv::eviction{.score = kv::trim_kv{}, .budget = kv::per_lane{8}});
    CHECK(now.decide() == counted(8, 8));
    now.observe();
    CHECK(now.decide() == counted(8, 0));
    for (int e = 0; e < 24; ++e) CHECK_FALSE(std::signbit(now.plan.score(0, e)));
  }

  TEST_CASE("turns: an empty memory counts, and so does a sequence without rows") {
    engine of;
    decider now(of, kv::eviction{.score = kv::intent_kv{}, .budget = kv::per_lane{8}});
    of.valid[1] = 0;
    CHECK(now.decide() == counted(2, 2));
    now.observe();
    CHECK(now.decide() == counted(2, 1));
    of.valid[1] = 4;
    CHECK(now.decide() == counted(2, 1));  // the second sequence's rows are there, its memory is not
    now.observe();
    CHECK(now.decide() == counted(2, 0));
    std::vector<std::byte> memory(now.held.session_bytes());
    now.held.save_session(now.exec, 0, memory.data());
    decider later(of, now.policy);
    later.held.load_session(later.exec, 1, memory.data());
    CHECK(later.decide() == counted(2, 1));  // what a session remembers was observed
  }

  TEST_CASE("a pick by threshold counts where it drops something, and has no budget to be over") {
    engine of;
    decider now(of, kv::eviction{.score = kv::trim_kv{},
                                 .budget = kv::per_lane{8},
                                 .pick = kv::at_least{.least = -6, .unbounded = true}});
    CHECK(now.decide() == counted(0, 0));  // 0 is enough
    now.policy.pick.least = 1;
    CHECK(now.decide() == kv::report{.triggered = 8, .unobserved = 8, .emptied = 8});
    now.policy.pick.least = -6;
    now.observe();
    CHECK(now.decide() == counted(8, 0));
    CHECK(now.plan.keep().listed(0).size() > 8);
  }
}

/// A window of four over pages, a token a step, with or without gates.
struct admitting {
  static constexpr int window = 4;
  void room(int tokens) { kv::promote(exec, policy, kv::signals{both.window.lanes}, both, held, plans, tokens); }
  void step(bool tells) {
    room(1);
    kv::append(exec, both.window, held.window, {.tokens = 1, .position = length++});
    if (tells) tell(both.window.lanes, held.window, 1);
  }
  void tell(kv::lanes const& batch, kv::state<kv::host_executor>& to, int entries) {
    gates.assign(as_size(4 * entries), gate);
    kv::gate const fresh{{.base = reinterpret_cast<std::byte const*>(gates.data()),
                          .layer = 8 * entries,
                          .head = 4 * entries,
                          .entry = 4,
                          .entries = entries}};
    kv::observe(exec, policy, kv::signals{batch, fresh}, to);
  }
  [[nodiscard]] kv::report const& report() const { return plans.decided.report(); }

  dual_engine engine{{}};
  kv::host_executor exec;
  kv::dual_cache both = engine.view();
  decltype(kv::policies::wg_kv()) policy = kv::policies::wg_kv({.window = window});
  kv::dual_state<kv::host_executor> held = kv::make_state(exec, policy, both);
  kv::exit_plan<kv::host_executor> plans = kv::make_plan(exec, policy, both);
  std::vector<float> gates;
  float gate = 1;
  int length = 0;
};

TEST_SUITE("core/observed: admission") {
  TEST_CASE("what leaves a window without a gate is dropped, and counted") {
    admitting now;
    for (int t = 0; t < admitting::window; ++t) now.step(false);
    CHECK(now.report() == counted(0, 0));
    for (int t = 0; t < 9; ++t) {
      now.step(false);
      CHECK(now.report() == counted(4, 4));
    }
    for (int t = 0; t < admitting::window; ++t) now.step(true);  // still those without leave
    CHECK(now.report() == counted(4, 4));
    now.step(true);
    CHECK(now.report() == counted(0, 0));
  }

  TEST_CASE("a gate of 0 is a gate: its entry is dropped, and nothing is counted") {
    admitting now;
    now.gate = 0;
    for (int t = 0; t < 12; ++t) {
      now.step(true);
      CHECK(now.report() == counted(t < admitting::window ? 0 : 4, 0));
    }
  }

  TEST_CASE("gates that came with a chunk are known when its last entries leave") {
    for (bool const tells : {true, false}) {
      admitting now;
      now.gate = 0;
      kv::cache const chunk = now.engine.chunk(10, 0);
      auto [of_fresh, decided] = state_and_plan(now.exec, now.policy, chunk);
      if (tells) now.tell(chunk.lanes, of_fresh, 10);
      kv::decide(now.exec, now.policy, kv::signals{chunk.lanes}, of_fresh, decided);
      CHECK(decided.report() == counted(4, tells ? 0 : 4));
      kv::ingest(now.exec, now.policy, kv::signals{now.both.window.lanes}, chunk, of_fresh, decided, now.both, now.held,
                 now.plans);
      now.room(1);
      CHECK(now.report() == counted(4, tells ? 0 : 4));
    }
  }
}

TEST_SUITE("core/scores: report") {
  TEST_CASE("a lane that keeps more than its budget is counted: by force, by slack, in a pool") {
    engine of;
    auto const of_policy = [&](auto const& policy) {
      std::vector<kv::report> all;
      for (int const threads : {1, 3}) all.push_back(decider(of, policy, threads).decide());
      CHECK(all[0] == all[1]);
      return all[0];
    };
    auto const scores = kv::knorm{};
    auto const by_force = [&](auto const& limit, int recent) {
      return kv::eviction{.score = scores, .protect = kv::recent{recent}, .budget = limit};
    };
    CHECK(of_policy(by_force(kv::per_lane{8}, 8)) == counted(8, 0, 0));
    CHECK(of_policy(by_force(kv::per_lane{8}, 9)) ==
          kv::report{.forced_over_budget = 8, .triggered = 8, .over_budget = 8});
    CHECK(of_policy(by_force(kv::per_layer{.tokens = 8}, 9)) ==
          kv::report{.forced_over_budget = 4, .triggered = 4, .over_budget = 4});
    CHECK(of_policy(by_force(kv::per_sequence{.tokens = 8}, 9)) ==
          kv::report{.forced_over_budget = 2, .triggered = 2, .over_budget = 2});
    CHECK(of_policy(by_force(kv::unlimited{}, 9)) == kv::report{});
    auto const waits = [&](auto const& limit, int slack) {
      return kv::eviction{.score = scores,
                          .protect = kv::nothing{},
                          .budget = limit,
                          .pick = kv::top{},
                          .trigger = kv::over_budget{slack}};
    };
    CHECK(of_policy(waits(kv::per_lane{20}, 4)) == counted(0, 0, 8));
    CHECK(of_policy(waits(kv::per_lane{20}, 3)) == counted(8, 0, 0));
    CHECK(of_policy(waits(kv::per_sequence{.tokens = 20}, 16)) == counted(0, 0, 2));
    CHECK(of_policy(waits(kv::per_sequence{.tokens = 20}, 15)) == counted(2, 0, 0));
  }

  TEST_CASE("lowest_one after a long prefill is over its budget until one entry a step has brought it there") {
    for (int const threads : {1, 3}) {
      mock_cache memory({.model = {2, 2, 2, 4}, .bound = 32, .where = kv::locating::slot_map, .shared_table = false});
      kv::cache cache = memory.view();
      kv::eviction const policy{
          .score = kv::knorm{}, .protect = kv::sinks{2}, .budget = kv::per_lane{16}, .pick = kv::lowest_one{}};
      std::vector<int> table(as_size(4 * cache.where.table.head));
      std::copy_n(cache.where.table.data, table.size(), table.data());
      kv::by_lane<int> const list{table.data(), cache.where.table.sequence, cache.where.table.layer,
                                  cache.where.table.head};
      cache.where.table = {list.data, list.sequence, list.layer, list.head};
      kv::host_executor exec(threads);
      auto [held, plan] = state_and_plan(exec, policy, cache);
      for (int i = 0; i < 4; ++i) {
        memory.put(memory.lane_at(i), up_to(20));
      }
      for (int count = 20; count > 14; --count) {
        kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache)}, held, plan);
        CAPTURE(count);
        CHECK(plan.report() == counted(count > 16 ? 4 : 0, 0, count > 17 ? 4 : 0));
        kv::apply(exec, kv::overwrite{list}, plan, cache, held);
        CHECK(memory.count(memory.lane_at(0)) == std::max(16, count - 1));
        if (count <= 16) break;
      }
      for (int step = 0; step < 3; ++step) {  // each new entry takes the place of one: never over again
        kv::append(exec, cache, held, {.tokens = 1, .position = 20 + step});
        kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache)}, held, plan);
        CHECK(plan.report() == counted(4, 0, 0));
        kv::apply(exec, kv::overwrite{list}, plan, cache, held);
      }
      kv::append(exec, cache, held, {.tokens = 1, .position = 40});
      kv::eviction waits = policy;
      waits.trigger.slack = 1;
      kv::decide(exec, waits, kv::signals{cache.lanes, kv::keys_of(cache)}, held, plan);
      CHECK(plan.report() == counted(0, 0, 4));
      kv::eviction const all_forced{
          .score = kv::knorm{}, .protect = kv::everything{}, .budget = kv::per_lane{16}, .pick = kv::lowest_one{}};
      kv::decide(exec, all_forced, kv::signals{cache.lanes, kv::keys_of(cache)}, held, plan);
      CHECK(plan.report() == kv::report{.forced_over_budget = 4, .triggered = 4, .over_budget = 4});
    }
  }
}

}  // namespace
