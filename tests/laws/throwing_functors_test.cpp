// SPDX-License-Identifier: Apache-2.0
// Every functor that a user can supply throws, in the first, a middle and the last entry: the exception arrives at the
// caller, state and cache are what they were, the plan holds no decision and says so, and the next decision is good.

#include "laws/fuse.hpp"

namespace throwing_functors_test {

using namespace kvpolicy_test;

int index_of(kv::lane this_lane) { return this_lane.sequence * 4 + this_lane.layer * 2 + this_lane.head; }

struct fused_protection {
  fuse const* of = nullptr;
  bool operator()(kv::entry at) const {
    of->ask(part::protection, at);
    return at.position == 1;
  }
  friend bool operator==(fused_protection const&, fused_protection const&) = default;
};
struct fused_run {
  fuse const* of = nullptr;
  bool operator()(kv::entry at) const { return at.ordinal == 0; }
  [[nodiscard]] kv::ordinal_range candidates(kv::lane_entries const& in) const {
    of->ask(part::run, in.lane == of->lane);
    return {1, in.count};
  }
  friend bool operator==(fused_run const&, fused_run const&) = default;
};
struct fused_budget {
  fuse const* of = nullptr;
  kv::budget_scope shared = kv::budget_scope::lane;
  int operator()(kv::lane this_lane, int) const {
    of->ask(part::budget, this_lane == of->lane);
    return 5 + index_of(this_lane);
  }
  [[nodiscard]] kv::budget_scope scope() const { return shared; }
  [[nodiscard]] int floor(int share) const {
    of->ask(part::floor, share == of->share);
    return 2;
  }
  friend bool operator==(fused_budget const&, fused_budget const&) = default;
};
struct fused_trigger {
  fuse const* of = nullptr;
  bool operator()(int count, int budget) const {
    of->ask(part::trigger, count == of->count);
    return count > budget;
  }
  friend bool operator==(fused_trigger const&, fused_trigger const&) = default;
};
struct fused_pick {
  fuse const* of = nullptr;
  bool operator()(float score) const {
    of->ask(part::pick, score == of->score);
    return score > 0.4f;
  }
  friend bool operator==(fused_pick const&, fused_pick const&) = default;
};
struct fused_forces {
  fuse const* of = nullptr;
  bool operator()(kv::entry at) const {
    of->ask(part::forces, at);
    return at.position == 2;
  }
  friend bool operator==(fused_forces const&, fused_forces const&) = default;
};
struct fused_map {
  fuse const* of = nullptr;
  kv::by_lane<float const> mass;
  float operator()(float old, kv::entry at) const {
    of->ask(part::map, at);
    return old < -1e30f ? old : mass.row(at.lane)[at.ordinal];
  }
};

/// A scorer by recorded attention mass. `Ranks`: who competes is marked in the scores before it is asked.
template <class Forces, bool Ranks = false>
struct fused_scorer {
  fuse const* of = nullptr;
  Forces forced{};

  using needs = kv::needs<kv::attention_mass>;
  static constexpr auto decides = kv::granularity::lane;
  static constexpr bool ranks_candidates = Ranks;
  [[nodiscard]] Forces forces() const { return forced; }
  [[nodiscard]] auto recorders() const { return std::tuple{kv::record_attention_mass{}}; }
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    if (!Ranks) kv::ops::map(exec, out, zero{});
    kv::ops::map(exec, out, fused_map{of, in.template get<kv::attention_mass>().mass});
  }
  friend bool operator==(fused_scorer const&, fused_scorer const&) = default;

 private:
  struct zero {
    float operator()(float, kv::entry) const { return 0.0f; }
  };
};

template <class Score, class Protect, class Pick = kv::top>
using fused_policy = kv::eviction<Score, Protect, fused_budget, Pick, fused_trigger>;

/// Two sequences, two layers, two heads: lanes of 9 to 16 entries, observed, and a policy whose functors have a fuse.
template <class Policy>
class fused_batch {
 public:
  fused_batch(Policy const& with, int threads) : policy(with), exec(threads) {
    for (int i = 0; i < lanes; ++i) {
      cache.put(cache.lane_at(i), up_to(9 + i));
    }
    fill_current(queries, cache, content::smooth);
    for (int s = 0; s < 2; ++s) {
      for (int r = 0; r < 3; ++r) queries.set_position(s, r, 20 + r);
    }
    kv::observe(exec, policy, signals(), state);
  }

  void decide() { kv::decide(exec, policy, signals(), state, *plan); }
  [[nodiscard]] kv::signals<kv::keys, kv::queries> signals() const {
    return kv::signals(view.lanes, kv::keys_of(view), kv::queries{queries.view()});
  }
  void renew() { plan.emplace(kv::make_plan(exec, policy, view)); }

  struct decision {
    std::vector<std::vector<int>> lists;
    std::vector<float> scores;
    kv::report report;
    friend bool operator==(decision const&, decision const&) = default;
  };
  [[nodiscard]] decision found() const {
    decision all{{}, {}, plan->report()};
    for (int i = 0; i < lanes; ++i) {
      all.lists.push_back(listed(plan->keep(), i));
      for (int e = 0; e < 9 + i; ++e) all.scores.push_back(plan->score(i, e));
    }
    return all;
  }

  /// Cache, tables, counts and recorded columns.
  using memory = std::pair<mock_cache::snapshot, std::vector<std::byte>>;
  [[nodiscard]] memory save() const {
    memory all{cache.save(), {}};
    for (kv::recorded_column const& each : state.columns()) {
      auto const* const first = each.rows.row({});
      all.second.insert(all.second.end(), first, first + each.rows.sequence * 2);
    }
    return all;
  }

  static constexpr int lanes = 8;
  mock_cache cache{{.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4},
                    .sequences = 2,
                    .bound = 20,
                    .where = kv::locating::slot_map,
                    .shared_table = false}};
  mock_queries queries{cache, kv::codec::f32, 3, 3};
  Policy policy;
  kv::host_executor exec;
  kv::cache view = cache.view();
  kv::state<kv::host_executor> state = kv::make_state(exec, policy, view);
  std::optional<kv::plan<kv::host_executor>> plan = kv::make_plan(exec, policy, view);
};

/// Everything that needs a decision refuses the plan, says why, and changes nothing.
template <class Batch>
void holds_no_decision(Batch& now, std::string const& since) {
  CHECK(!now.plan->decided());
  CHECK(now.plan->keep().indices == nullptr);
  CHECK(now.plan->keep().segments() == 0);
  auto const refused = [&](std::string const& call, auto const& does) {
    CHECK(error_of(does) == call + ": plan = empty" + since + ", but decide comes before " + call);
  };
  auto const before = now.save();
  kv::apply_stats stats{1, 2, 3};
  auto const list = kv::by_lane<int>{const_cast<int*>(now.view.where.table.data), now.view.where.table.sequence,
                                     now.view.where.table.layer, now.view.where.table.head};
  refused("apply", [&] { kv::apply(now.exec, kv::compact{}, *now.plan, now.view, now.state, &stats); });
  refused("apply", [&] { kv::apply(now.exec, kv::overwrite{list}, *now.plan, now.view, now.state, &stats); });
  refused("apply",
          [&] { kv::apply(now.exec, kv::list_rewrite<>{.list = list}, *now.plan, now.view, now.state, &stats); });
  refused("explain", [&] { (void)kv::explain(now.policy, *now.plan, 0, 0); });
  refused("forces", [&] { (void)kv::forces(now.policy, *now.plan, 0, 0); });
  refused("report", [&] { (void)now.plan->report(); });
  refused("score", [&] { (void)now.plan->score(0, 0); });
  CHECK(stats == kv::apply_stats{1, 2, 3});
  CHECK(now.save() == before);
}

/// Each of `parts` throws in the first, a middle and the last entry, or what it is asked about there.
template <class Policy>
void every_throw_leaves_no_decision(Policy const& policy, fuse& of, std::initializer_list<part> parts) {
  kv::budget_scope const scope = policy.budget.shared;
  int const pool = scope == kv::budget_scope::lane ? 1 : scope == kv::budget_scope::layer ? 2 : 4;
  for (int const threads : {1, 3}) {
    of = {};
    fused_batch now(policy, threads);
    holds_no_decision(now, "");
    now.decide();
    auto const good = now.found();
    auto const before = now.save();
    for (part const by : parts) {
      for (int const lane : {0, 4, 7}) {
        int const last = 8 + lane;
        of.lane = now.cache.lane_at(lane);
        of.ordinal = lane == 0 ? 0 : lane == 7 ? last : last / 2;
        of.count = 0;
        for (int i = lane / pool * pool; i < lane / pool * pool + pool; ++i) of.count += 9 + i;
        of.share = 5 + lane;
        of.score = good.scores[as_size(lane * 9 + lane * (lane - 1) / 2 + of.ordinal)];
        INFO("threads ", threads, ", by ", static_cast<int>(by), ", lane ", lane);
        REQUIRE(now.plan->decided());
        of.by = by;
        auto thrown = part::none;
        try {
          now.decide();
        } catch (blown const& caught) {
          thrown = caught.by;
        }
        CHECK(thrown == by);
        CHECK(now.save() == before);
        holds_no_decision(now, " since its last decision did not finish");
        of.by = part::none;
        now.decide();
        CHECK(now.found() == good);
        now.renew();
        now.decide();
        CHECK(now.found() == good);
      }
    }
  }
}

TEST_SUITE("laws/throwing") {
  TEST_CASE("budgets of a lane: what protection, budget, trigger, the scorer's forces and its map throw arrives") {
    fuse of;
    fused_policy<fused_scorer<fused_forces>, fused_protection> const policy{
        .score = {&of, {&of}}, .protect = {&of}, .budget = {&of}, .trigger = {&of}};
    every_throw_leaves_no_decision(policy, of,
                                   {part::protection, part::budget, part::trigger, part::forces, part::map});
  }

  TEST_CASE("budgets that lanes share: the same, and what a floor throws") {
    for (auto const scope : {kv::budget_scope::layer, kv::budget_scope::sequence}) {
      fuse of;
      fused_policy<fused_scorer<fused_forces>, fused_protection> const policy{
          .score = {&of, {&of}}, .protect = {&of}, .budget = {&of, scope}, .trigger = {&of}};
      every_throw_leaves_no_decision(
          policy, of, {part::protection, part::budget, part::floor, part::trigger, part::forces, part::map});
    }
  }

  TEST_CASE("a protection that says which run competes") {
    fuse of;
    fused_policy<fused_scorer<kv::nothing>, fused_run> const policy{
        .score = {&of}, .protect = {&of}, .budget = {&of}, .trigger = {&of}};
    every_throw_leaves_no_decision(policy, of, {part::run, part::budget, part::trigger, part::map});
  }

  TEST_CASE("a pick by the score alone") {
    fuse of;
    fused_policy<fused_scorer<fused_forces>, fused_protection, fused_pick> const policy{
        .score = {&of, {&of}}, .protect = {&of}, .budget = {&of}, .pick = {&of}, .trigger = {&of}};
    every_throw_leaves_no_decision(policy, of, {part::pick, part::protection, part::forces, part::map});
  }

  TEST_CASE("one entry a decision, asked entry by entry and by the run that competes") {
    fuse of;
    fused_policy<fused_scorer<fused_forces>, fused_protection, kv::lowest_one> const each{
        .score = {&of, {&of}}, .protect = {&of}, .budget = {&of}, .trigger = {&of}};
    every_throw_leaves_no_decision(each, of, {part::protection, part::budget, part::trigger, part::forces, part::map});
    fused_policy<fused_scorer<kv::nothing>, fused_run, kv::lowest_one> const run{
        .score = {&of}, .protect = {&of}, .budget = {&of}, .trigger = {&of}};
    every_throw_leaves_no_decision(run, of, {part::run, part::budget, part::trigger, part::map});
  }

  TEST_CASE("a scorer that is told who competes") {
    fuse of;
    fused_policy<fused_scorer<fused_forces, true>, fused_protection> const policy{
        .score = {&of, {&of}}, .protect = {&of}, .budget = {&of}, .trigger = {&of}};
    every_throw_leaves_no_decision(policy, of,
                                   {part::protection, part::budget, part::trigger, part::forces, part::map});
  }

  TEST_CASE("a decision that refuses its arguments has not begun: the one before stands") {
    fuse of;
    fused_policy<fused_scorer<fused_forces>, fused_protection> const policy{
        .score = {&of, {&of}}, .protect = {&of}, .budget = {&of}, .trigger = {&of}};
    fused_batch now(policy, 1);
    now.decide();
    auto const good = now.found();
    auto wrong = now.signals();
    wrong.lanes.capacity = 3;
    CHECK(!error_of([&] { kv::decide(now.exec, policy, wrong, now.state, *now.plan); }).empty());
    CHECK(now.plan->decided());
    CHECK(now.found() == good);
  }
}

}  // namespace throwing_functors_test
