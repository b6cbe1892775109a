// SPDX-License-Identifier: Apache-2.0
// A functor that throws in a step, in promote or in ingest: what the admission throws changes nothing but the plan;
// what the eviction throws arrives after the forward, and `maintain` makes up for it.

#include "laws/fuse.hpp"
#include "support/stepping.hpp"

namespace throwing_steps_test {

using namespace kvpolicy_test;

/// Protects a tenth of all positions; or throws.
struct fused_protection {
  fuse const* of = nullptr;
  part as = part::protection;
  bool operator()(kv::entry at) const {
    of->ask(as, at);
    return at.position % 10 == 3;
  }
  friend bool operator==(fused_protection const&, fused_protection const&) = default;
};
struct fused_pick {
  fuse const* of = nullptr;
  bool operator()(float score) const {
    of->ask(part::pick, score == of->score);
    return score > 0.05f;
  }
  friend bool operator==(fused_pick const&, fused_pick const&) = default;
};

using admission_type = kv::admission<kv::write_gate, fused_protection, fused_pick>;
using policy_type =
    kv::cache_policy<admission_type, kv::selection<kv::quest>, kv::eviction<kv::trim_kv, fused_protection>>;

/// One sequence of four lanes, a ring of eight rows, pages, and a policy whose functors have a fuse.
class fused_sequence {
 public:
  [[nodiscard]] auto window() const { return kv::window_part(policy); }

  explicit fused_sequence(int threads)
      : exec(threads),
        engine({.rows = 8, .page = 4, .pages = 200, .bound = 128}),
        both(engine.view()),
        held(kv::make_state(exec, policy, both)),
        plans(kv::make_plan(exec, policy, both)),
        of_fresh(kv::make_state(exec, window(), engine.chunk(0, 0))),
        fresh_plan(kv::make_plan(exec, window(), engine.chunk(0, 0))) {}

  void step(int tokens = 1) {
    kv::step(
        exec, policy, kv::signals{both.window.lanes}, both, held, plans, {.tokens = tokens, .position = length},
        [&] { forward(tokens); }, &told);
    length += tokens;
  }
  void maintain() {
    kv::maintain(exec, policy, kv::signals{both.window.lanes}, both.pages, held.pages, plans, &told.evicted);
  }
  void ingest(int tokens) {
    kv::cache const chunk = engine.chunk(tokens, length);
    tell(chunk.lanes, tokens, [&](auto const& in) { kv::observe(exec, window(), in, of_fresh); });
    kv::decide(exec, window(), kv::signals{chunk.lanes}, of_fresh, fresh_plan);
    kv::ingest(exec, window(), kv::signals{both.window.lanes}, chunk, of_fresh, fresh_plan, both, held,
               *plans.admission, &told.promoted);
    length += tokens;
  }
  /// Rows, tables, counts, the supply of pages, and what is recorded about every entry and page.
  using memory = std::pair<dual_engine::snapshot, std::vector<std::byte>>;
  [[nodiscard]] memory save() const {
    memory all{engine.save(), {}};
    for (auto const& [state, who] :
         {std::pair{&held.window, &both.window.lanes}, std::pair{&held.pages, &both.pages.entries.lanes}}) {
      for (kv::recorded_column const& each : state->columns()) {
        for (int i = 0; i < who->size(); ++i) {
          int const units = each.about.units != 0 ? each.about.units : *who->count.row(who->at(i));
          auto const* const first = each.rows.row(who->at(i));
          all.second.insert(all.second.end(), first, first + std::int64_t{units} * each.about.bytes);
        }
      }
      all.second.push_back(static_cast<std::byte>(state->slid()));
    }
    return all;
  }

  fuse of;
  policy_type policy{.admit = {.protect = {&of}, .window = 6, .pick = {&of}},
                     .select = {.score = {.page = 4}, .budget = {8}, .dense_layers = 0},
                     .evict = {.protect = {&of, part::eviction}, .budget = {5}}};
  kv::host_executor exec;
  dual_engine engine;
  kv::dual_cache both;
  kv::dual_state<kv::host_executor> held;
  kv::step_plan<kv::host_executor> plans;
  kv::state<kv::host_executor> of_fresh;
  kv::plan<kv::host_executor> fresh_plan;
  kv::step_stats told;
  int length = 0;

 private:
  void forward(int tokens) {
    for (int i = 0; i < engine.lanes(); ++i) {
      kv::lane const this_lane = both.window.lanes.at(i);
      int const count = *both.window.lanes.count.row(this_lane);
      for (int t = 0; t < tokens; ++t) dual_engine::write(both.window, this_lane, count - tokens + t, length + t);
    }
    tell(both.window.lanes, tokens, [&](auto const& in) { kv::observe(exec, policy, in, held); });
  }

  /// Gates and log beta of the newest tokens.
  template <class Observe>
  void tell(kv::lanes const& batch, int tokens, Observe const& observe) {
    gates_.clear();
    betas_.clear();
    for (int i = 0; i < engine.lanes(); ++i) {
      for (int t = 0; t < tokens; ++t) {
        gates_.push_back(gate_of(i, length + t));
        betas_.push_back(log_beta_of(i, length + t));
      }
    }
    observe(kv::signals{batch, newest_numbers<kv::gate>(gates_, tokens), newest_numbers<kv::log_beta>(betas_, tokens)});
  }

  std::vector<float> gates_, betas_;
};

template <class Call>
part thrown_by(Call const& call) {
  try {
    call();
  } catch (blown const& caught) {
    return caught.by;
  }
  return part::none;
}

void refuses(kv::plan<kv::host_executor> const& plan) {
  CHECK(!plan.decided());
  CHECK(error_of([&] { (void)plan.report(); }) ==
        "report: plan = empty since its last decision did not finish, but decide comes before report");
}

/// Two sequences under one policy, of which only the first is ever made to throw.
struct pair_of_sequences {
  explicit pair_of_sequences(int threads) : now(threads), never(threads) {}
  template <class Call>
  void both(Call const& call) {
    call(now);
    call(never);
  }
  void step() {
    both([](fused_sequence& each) { each.step(3); });
  }
  void ingest(int tokens) {
    both([&](fused_sequence& each) { each.ingest(tokens); });
  }
  fused_sequence now, never;
};

/// The fuse at the first, a middle or the last of the `leaving` entries that leave the window in the next call.
void aim(fused_sequence& at, part by, int which, int leaving) {
  int const lane = which == 0 ? 0 : which == 1 ? 2 : 3;
  at.of.lane = at.both.window.lanes.at(lane);
  at.of.ordinal = which * (leaving - 1) / 2;
  at.of.score = gate_of(lane, at.both.window.lanes.position.row(at.of.lane)[at.of.ordinal]);
  at.of.by = by;
}

TEST_SUITE("laws/throwing") {
  TEST_CASE("what the admission throws in a step changes nothing but the plan, and the step can be taken again") {
    for (int const threads : {1, 3}) {
      pair_of_sequences two(threads);
      fused_sequence &now = two.now, &never = two.never;
      for (int i = 0; i < 8; ++i) two.step();
      for (part const by : {part::protection, part::pick}) {
        for (int const which : {0, 1, 2}) {
          auto const before = now.save();
          REQUIRE(now.plans.admission->decided.decided());
          REQUIRE(now.plans.eviction.decided());
          aim(now, by, which, 3);
          CHECK(thrown_by([&] { now.step(3); }) == by);
          CHECK(now.save() == before);
          refuses(now.plans.admission->decided);
          refuses(now.plans.eviction);
          now.of.by = part::none;
          two.step();
          CHECK(now.save() == never.save());
          CHECK(now.plans.admission->decided.report() == never.plans.admission->decided.report());
          CHECK(now.told.promoted.promoted == never.told.promoted.promoted);
        }
      }
    }
  }

  TEST_CASE(
      "what the eviction throws in a step arrives after the forward: tokens stay, nothing goes, maintain makes up for "
      "it") {
    for (int const threads : {1, 3}) {
      pair_of_sequences two(threads);
      fused_sequence &now = two.now, &never = two.never;
      for (int i = 0; i < 8; ++i) two.step();
      for (int const lane : {0, 2, 3}) {
        kv::lane const this_lane = now.both.window.lanes.at(lane);
        std::vector<int> before;
        for (int i = 0; i < 4; ++i) {
          before.push_back(*now.both.pages.entries.lanes.count.row(now.both.pages.entries.lanes.at(i)));
        }
        now.of.lane = this_lane;
        now.of.ordinal = lane == 0 ? 0 : lane == 2 ? 1 : *now.both.pages.entries.lanes.count.row(this_lane) - 1;
        now.of.by = part::eviction;
        int const length = now.length;
        CHECK(thrown_by([&] { now.step(3); }) == part::eviction);
        refuses(now.plans.eviction);
        CHECK(now.plans.admission->decided.decided());
        for (int i = 0; i < 4; ++i) {
          kv::lane const each = now.both.window.lanes.at(i);
          kv::lanes const& window = now.both.window.lanes;
          CHECK(window.position.row(each)[*window.count.row(each) - 1] == length + 2);
          auto const promoted = std::ssize(now.plans.admission->decided.keep().listed(i));
          CHECK(*now.both.pages.entries.lanes.count.row(each) == before[as_size(i)] + promoted);
        }
        now.of.by = part::none;
        now.length += 3;
        now.maintain();
        never.step(3);
        CHECK(now.save() == never.save());
        CHECK(now.plans.eviction.report() == never.plans.eviction.report());
        CHECK(now.told.evicted == never.told.evicted);
        two.step();
        CHECK(now.save() == never.save());
      }
    }
  }

  TEST_CASE("promote and ingest whose functors throw change nothing but the plan") {
    for (int const threads : {1, 3}) {
      pair_of_sequences two(threads);
      fused_sequence &now = two.now, &never = two.never;
      two.ingest(30);
      CHECK(now.save() == never.save());
      for (part const by : {part::protection, part::pick}) {
        for (int const which : {0, 1, 2}) {
          auto const before = now.save();
          aim(now, by, which, 4);
          CHECK(thrown_by([&] {
                  kv::promote(now.exec, now.window(), kv::signals{now.both.window.lanes}, now.both, now.held,
                              *now.plans.admission, 4, &now.told.promoted);
                }) == by);
          CHECK(now.save() == before);
          refuses(now.plans.admission->decided);
          now.of.by = part::none;
          two.ingest(4);
          CHECK(now.save() == never.save());
        }
      }
    }
  }

  TEST_CASE("promote that is refused after exits were counted leaves no decision about other exits") {
    fused_sequence now(1);
    for (int i = 0; i < 8; ++i) now.step(3);
    REQUIRE(now.plans.admission->decided.decided());
    kv::append(now.exec, now.both.window, now.held.window, {.tokens = 1, .position = now.length, .in_flight = true});
    auto const before = now.save();
    CHECK(error_of([&] {
            kv::promote(now.exec, now.window(), kv::signals{now.both.window.lanes}, now.both, now.held,
                        *now.plans.admission, 4);
          }) == "promote: in_flight = 1, but drafts of sequence 0 are committed or truncated first");
    CHECK(now.save() == before);
    refuses(now.plans.admission->decided);
  }

  TEST_CASE("ingest whose own decision about the window throws changes nothing but the plan") {
    for (int const threads : {1, 3}) {
      pair_of_sequences two(threads);
      fused_sequence &now = two.now, &never = two.never;
      two.ingest(30);
      for (int const which : {0, 1, 2}) {
        auto const before = now.save();
        auto const length = now.length;
        aim(now, part::pick, which, 4);  // a gate of the window's: the chunk's own decision does not meet it
        CHECK(thrown_by([&] { now.ingest(4); }) == part::pick);
        CHECK(now.length == length);
        CHECK(now.save() == before);
        CHECK(now.fresh_plan.decided());
        refuses(now.plans.admission->decided);
        now.of.by = part::none;
        two.ingest(4);
        CHECK(now.save() == never.save());
      }
    }
  }
}

}  // namespace throwing_steps_test
