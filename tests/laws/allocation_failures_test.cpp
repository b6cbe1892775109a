// SPDX-License-Identifier: Apache-2.0
// The n-th allocation fails, for every n: nothing that an engine or a caller can see has changed, and the next try
// works. Calls that decide, move and count allocate only for the text of an error, so that is where theirs fails.

#include "laws/refusal.hpp"
#include "support/dual_engine.hpp"

namespace allocation_failures_test {

using namespace kvpolicy_test;

/// How often `call` runs out of memory before it does what it should: with its first allocation failing, its second,
/// and so on. `check` must hold after each failure. A refusal counts as the end: its text found memory.
template <class Call, class Check>
long failures_of(Call const& call, Check const& check) {
  for (long n = 0;; ++n) {
    bool failed = false;
    try {
      failed = fails_at_allocation(n, call);
    } catch (kv::invalid_argument const&) {
      until_failure = -1;
    }
    if (!failed) return n;
    REQUIRE(check());
  }
}

/// A refused call on a working batch: every allocation for its error fails once, and nothing changes.
template <class Call>
void refused_without_memory(char const* name, Call const& call) {
  INFO(name);
  working_batch now;
  auto const before = now.save();
  REQUIRE(!error_of([&] { call(now); }).empty());
  long const failures = failures_of([&] { call(now); }, [&] { return now.is(before); });
  CHECK(failures >= 1);
  CHECK(now.is(before));
}

/// A call that works allocates nothing, so no allocation of it can fail.
template <class Call>
void works_without_memory(char const* name, Call const& call) {
  INFO(name);
  working_batch now;
  CHECK(!fails_at_allocation(0, [&] { call(now); }));
}

/// A protection that needs memory for every entry that it is asked about.
struct needs_memory {
  bool operator()(kv::entry at) const { return *std::make_unique<int>(at.position % 5) == 1; }
  friend bool operator==(needs_memory const&, needs_memory const&) = default;
};

/// make_state and make_plan of `policy` for `in`: every allocation fails once, and then both are made.
template <class Policy, class Cache>
long makings_that_fail(Policy const& policy, Cache const& in) {
  kv::host_executor exec(3);
  using state_type = decltype(kv::make_state(exec, policy, in));
  using plan_type = decltype(kv::make_plan(exec, policy, in));
  std::optional<state_type> state;
  std::optional<plan_type> plan;
  auto const alike = [&] {  // whatever is reserved, all workers have
    for (int worker = 0; worker < 3; ++worker) {
      if (exec.scratch(worker).size() != exec.reserved()) return false;
    }
    return !plan;
  };
  long const failures = failures_of(
      [&] {
        state.reset();
        state.emplace(kv::make_state(exec, policy, in));
        plan.emplace(kv::make_plan(exec, policy, in));
      },
      alike);
  CHECK(plan.has_value());
  return failures;
}

TEST_SUITE("laws/allocation") {
  TEST_CASE("calls that work need no memory: observe, decide, apply, append, commit, truncate, copy_from") {
    works_without_memory("observe", [](working_batch& on) { kv::observe(on.exec, on.policy, on.signals(), on.state); });
    works_without_memory("decide",
                         [](working_batch& on) { kv::decide(on.exec, on.policy, on.signals(), on.state, on.plan); });
    works_without_memory("apply",
                         [](working_batch& on) { kv::apply(on.exec, kv::compact{}, on.plan, on.view, on.state); });
    works_without_memory("append, commit, truncate", [](working_batch& on) {
      kv::append(on.exec, on.view, on.state, {.sequence = 1, .tokens = 3, .position = 10, .in_flight = true});
      kv::commit(on.exec, on.view, 1, 2);
      kv::truncate(on.exec, on.view, on.state, 1, 4);
    });
    works_without_memory("copy_from", [](working_batch& on) { on.state.copy_from(on.state); });
  }

  TEST_CASE("a refused call changes nothing, at whichever allocation its error's text fails") {
    refused_without_memory("append", [](working_batch& on) {
      kv::append(on.exec, on.view, on.state, {.sequence = 0, .tokens = 7, .position = 10});
    });
    refused_without_memory("append of what does not ascend", [](working_batch& on) {
      kv::append(on.exec, on.view, on.state, {.sequence = 0, .tokens = 1, .position = 9});
    });
    refused_without_memory("commit", [](working_batch& on) { kv::commit(on.exec, on.view, 0, 1); });
    refused_without_memory("truncate", [](working_batch& on) { kv::truncate(on.exec, on.view, on.state, 2, 0); });
    refused_without_memory("observe", [](working_batch& on) {
      auto other = on.signals();
      other.lanes.capacity = 3;
      kv::observe(on.exec, on.policy, other, on.state);
    });
    refused_without_memory("decide", [](working_batch& on) {
      working_batch::policy_type const wrong{.budget = {-1}};
      kv::decide(on.exec, wrong, on.signals(), on.state, on.plan);
    });
    refused_without_memory("apply", [](working_batch& on) {
      kv::cache other = on.view;
      other.v = other.k;
      kv::apply(on.exec, kv::compact{}, on.plan, other, on.state);
    });
    refused_without_memory("make_plan", [](working_batch& on) {
      (void)kv::make_plan(on.exec, working_batch::policy_type{.budget = {-1}}, on.view);
    });
    refused_without_memory("copy_from", [](working_batch& on) {
      auto const other = kv::make_state(on.exec, kv::policies::knorm(), on.view);
      on.state.copy_from(other);
    });
  }

  TEST_CASE("make_state and make_plan of a policy by name fail at every allocation, and then work") {
    working_batch now;
    kv::any_policy const policy = kv::parse("snapkv(window=3) | sinks(1) | budget(6)");
    auto const before = now.save();
    std::optional<kv::state<kv::host_executor>> state;
    std::optional<kv::plan<kv::host_executor>> plan;
    auto const unmade = [&] { return !plan && now.is(before); };
    long const failures = failures_of(
        [&] {
          state.reset();
          state.emplace(kv::make_state(now.exec, policy, now.view));
          plan.emplace(kv::make_plan(now.exec, policy, now.view));
        },
        unmade);
    CHECK(failures >= 8);  // three columns, five buffers of a plan
    kv::observe(now.exec, policy, now.signals(), *state);
    kv::decide(now.exec, policy, now.signals(), *state, *plan);
    CHECK(plan->keep().listed(0).size() == 6);
  }

  TEST_CASE("parse fails at every allocation, and the registry and the next parse are what they were") {
    kv::registry const known = kv::shipped();
    for (std::string_view const text :
         {"h2o(heavy=-1, recent=3) | reduce_lanes(token, max) | recent(2) | budget(64, scope=layer, floor=0.2)",
          "snapkv(window=32, pool=max:7, rows=sum, group=mean) | sinks(4) | budget(1024)", "knorm(",
          "snapkv(windw=1)"}) {
      std::string const error = error_of([&] { (void)kv::parse(text, known); });
      std::optional<kv::any_policy> made;
      long const failures = failures_of([&] { made.emplace(kv::parse(text, known)); }, [&] { return !made; });
      CHECK(failures >= 1);
      CHECK(error_of([&] { (void)kv::parse(text, known); }) == error);
      CHECK(made.has_value() == error.empty());
      if (made) CHECK(kv::to_string(kv::parse(text, known)) == kv::to_string(*made));
    }
  }

  TEST_CASE("an executor with threads and a longer scratch fail at every allocation, and then work") {
    long const failures = failures_of([] { kv::host_executor const made(3); }, [] { return true; });
    CHECK(failures >= 3);
    kv::host_executor exec(3);
    for (std::size_t const bytes : {std::size_t{100}, std::size_t{1000}}) {
      std::size_t const before = exec.reserved();
      CHECK(failures_of([&] { exec.reserve(bytes); },
                        [&] {
                          bool as_before = exec.reserved() == before;
                          for (int worker = 0; worker < 3; ++worker) {
                            as_before = as_before && exec.scratch(worker).size() == before;
                          }
                          return as_before;
                        }) == 2);  // what one try got for a worker, the next need not ask for
      CHECK(exec.reserved() >= bytes);
      for (int worker = 0; worker < 3; ++worker) CHECK(exec.scratch(worker).size() == exec.reserved());
    }
  }

  TEST_CASE(
      "make_state and make_plan of an eviction, a selection, an admission and of all three fail everywhere, and then "
      "work") {
    working_batch now;
    auto const before = now.save();
    CHECK(makings_that_fail(kv::eviction<kv::h2o>{.budget = {6}}, now.view) >= 8);
    CHECK(makings_that_fail(kv::selection<kv::quest>{.score = {.page = 4}, .budget = {8}}, now.view) >= 10);
    dual_engine engine({.rows = 8, .page = 4});
    kv::dual_cache const both = engine.view();
    auto const untouched = engine.save();
    kv::admission<kv::write_gate> const admit{.window = 6};
    CHECK(makings_that_fail(admit, both) >= 14);
    kv::cache_policy<kv::admission<kv::write_gate>, kv::selection<kv::quest>, kv::eviction<kv::trim_kv>> const all{
        .admit = admit, .select = {.score = {.page = 4}}, .evict = {.budget = {6}}};
    CHECK(makings_that_fail(all, both) >= 25);
    CHECK(engine.save() == untouched);
    CHECK(now.is(before));
  }

  TEST_CASE("a functor that runs out of memory: at every entry, the caller is told, and the plan holds no decision") {
    for (int const threads : {1, 3}) {
      working_batch now;
      kv::host_executor exec(threads);
      kv::eviction<kv::h2o, needs_memory> const policy{.budget = {6}};
      auto plan = kv::make_plan(exec, policy, now.view);
      auto const before = now.save();
      auto const decide = [&] { kv::decide(exec, policy, now.signals(), now.state, plan); };
      decide();
      REQUIRE(plan.decided());
      long const failures = failures_of(decide, [&] {
        bool const refused =
            error_of([&] { kv::apply(exec, kv::compact{}, plan, now.view, now.state); }) ==
            "apply: plan = empty since its last decision did not finish, but decide comes before apply";
        return refused && !plan.decided() && now.is(before);
      });
      CHECK(failures >= 8 * 7);  // of eight lanes with ten entries three are the scorer's, which it is not asked about
      CHECK(plan.decided());
      CHECK(now.is(before));
      CHECK(plan.keep().listed(7).size() == 6);
    }
  }
}

}  // namespace allocation_failures_test
