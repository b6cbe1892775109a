// SPDX-License-Identifier: Apache-2.0
// One executor in two threads: each call does its work, or throws and does none of it.

#include "laws/refusal.hpp"
#include "support/device.hpp"

namespace {

using namespace kvpolicy_test;

std::string refusal_of(std::string const& call) {
  return call + ": exec = at work for another thread, but an executor serves one thread at a time: give each its own";
}

/// While it lives, an executor works for another thread.
class busy_elsewhere {
 public:
  explicit busy_elsewhere(kv::host_executor& exec) {
    other_ = std::thread([this, &exec] {
      exec.for_each(1, [this](int, int) {
        working_ = true;
        while (!enough_) std::this_thread::yield();
      });
    });
    while (!working_) std::this_thread::yield();
  }
  ~busy_elsewhere() {
    enough_ = true;
    other_.join();
  }
  busy_elsewhere(busy_elsewhere const&) = delete;
  busy_elsewhere& operator=(busy_elsewhere const&) = delete;

 private:
  std::atomic<bool> working_{false};
  std::atomic<bool> enough_{false};
  std::thread other_;
};

/// Requests with numbers of their own. A decision about them is several verbs, which use scratch.
template <class Executor>
class requests {
 public:
  requests(Executor& exec, std::uint64_t seed) : exec_(exec), cache_(options(seed)) {
    fill(cache_, false);
    fill_current(queries_, cache_, content::smooth);
    decide();
    kept_ = kept();
  }

  void decide() { kv::decide(exec_, policy_, in_, state_, plan_); }
  [[nodiscard]] bool as_alone() const { return kept() == kept_; }

 private:
  static mock_options options(std::uint64_t seed) {
    return {.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8},
            .sequences = 2,
            .bound = 70,
            .rows = content::smooth,
            .seed = seed};
  }
  [[nodiscard]] std::vector<std::vector<int>> kept() const {
    std::vector<std::vector<int>> lists;
    for (int s = 0; s < plan_.keep().segments(); ++s) lists.push_back(listed(plan_.keep(), s));
    return lists;
  }

  Executor& exec_;
  mock_cache cache_;
  mock_queries queries_{cache_, kv::codec::f32, 4, 4};
  kv::eviction<kv::snapkv> policy_{.score = {.window = 4}, .budget = {20}};
  kv::cache view_ = cache_.view();
  kv::signals<kv::keys, kv::recent_queries> in_{view_.lanes, kv::keys_of(view_), kv::recent_queries{queries_.view()}};
  kv::state<Executor> state_ = kv::make_state(exec_, policy_, view_);
  kv::plan<Executor> plan_ = kv::make_plan(exec_, policy_, view_);
  std::vector<std::vector<int>> kept_;
};

/// Two threads decide with one executor.
template <class Executor>
void decides_or_refuses(Executor& exec, int rounds) {
  std::array<std::atomic<int>, 2> right{}, wrong{}, refused{}, strange{};
  requests<Executor> first(exec, 5), second(exec, 6);
  std::atomic<int> ready{0};
  auto const hammer = [&](requests<Executor>& mine, std::size_t me) {
    ++ready;
    while (ready < 2) std::this_thread::yield();
    for (int round = 0; round < rounds; ++round) {
      std::string const said = error_of([&] { mine.decide(); });
      if (said.empty()) {
        ++(mine.as_alone() ? right[me] : wrong[me]);
      } else {
        ++(said == refusal_of("decide") ? refused[me] : strange[me]);
      }
    }
  };
  std::thread other([&] { hammer(second, 1); });
  hammer(first, 0);
  other.join();
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(wrong[i] == 0);
    CHECK(strange[i] == 0);
    CHECK(right[i] + refused[i] == rounds);
  }
}

}  // namespace

TEST_SUITE("ops/executor") {
  TEST_CASE("two threads that decide with one executor get the right keep sets or errors") {
    for (int const threads : {1, 2, 3}) {
      kv::host_executor exec(threads);
      decides_or_refuses(exec, 400);
    }
    device_executor device;
    decides_or_refuses(device, 10);
  }

  TEST_CASE("while an executor works for one thread, every call of another is refused and changes nothing") {
    working_batch now;
    auto const batch = now.view.lanes;
    auto plan = kv::make_plan(now.exec, now.policy, now.view);
    std::vector<std::byte> saved(kv::saved_bytes(now.exec, now.view, now.state, 0));
    std::vector<std::byte> const untouched = saved;
    float number = 1.0f;
    kv::score_view scores = now.plan.scores(batch);
    busy_elsewhere const busy(now.exec);
    now.refuses(refusal_of("decide"), [&] { kv::decide(now.exec, now.policy, now.signals(), now.state, now.plan); });
    now.refuses(refusal_of("observe"), [&] { kv::observe(now.exec, now.policy, now.signals(), now.state); });
    now.refuses(refusal_of("apply"), [&] { kv::apply(now.exec, kv::compact{}, now.plan, now.view, now.state); });
    now.refuses(refusal_of("evict"),
                [&] { kv::evict(now.exec, now.policy, now.signals(), kv::compact{}, now.view, now.state, now.plan); });
    now.refuses(refusal_of("append"), [&] { kv::append(now.exec, now.view, now.state, {0, 1, 10}); });
    now.refuses(refusal_of("a verb"), [&] { kv::commit(now.exec, now.view, 0, 0); });
    now.refuses(refusal_of("truncate"), [&] { kv::truncate(now.exec, now.view, now.state, 0, 3); });
    now.refuses(refusal_of("reset"), [&] { kv::reset(now.exec, now.view, now.state, 0); });
    now.refuses(refusal_of("fork"), [&] { kv::fork(now.exec, now.view, now.state, 0, 1); });
    now.refuses(refusal_of("move"), [&] { kv::move(now.exec, now.view, now.state, 0, 1); });
    now.refuses(refusal_of("reorder"),
                [&] { kv::reorder(now.exec, now.view, now.state, std::array{1, 0}, kv::rows::leave); });
    now.refuses(refusal_of("save"), [&] { kv::save(now.exec, now.view, now.state, 0, saved); });
    now.refuses(refusal_of("load"), [&] { kv::load(now.exec, now.view, now.state, 1, saved); });
    now.refuses(refusal_of("map"), [&] { kv::ops::map(now.exec, scores, [&](float, kv::entry) { return number; }); });
    std::size_t const reserved = now.exec.reserved();
    now.refuses(refusal_of("reserve"), [&] { now.exec.reserve(1 << 24); });
    CHECK(now.exec.reserved() == reserved);
    CHECK(saved == untouched);
  }

  TEST_CASE("after a call that threw, another thread can call") {
    for (int const threads : {1, 2}) {
      kv::host_executor exec(threads);
      CHECK_THROWS_AS(exec.for_each(3, [](int, int) { throw 1; }), int);
      std::string said = "not yet";
      std::thread([&] { said = error_of([&] { exec.reserve(100); }); }).join();
      CHECK(said.empty());
    }
  }

  TEST_CASE("the engine's forward inside of a step may run on another thread") {
    working_batch now;
    kv::cache_policy const policy{.evict = now.policy};
    auto [state, plans] = state_and_plan(now.exec, policy, now.view);
    std::string said = "not yet";
    kv::step(now.exec, policy, now.signals().with(now.view.lanes), now.view, state, plans, {0, 1, 10},
             [&] { std::thread([&] { said = error_of([&] { now.exec.for_each(1, [](int, int) {}); }); }).join(); });
    CHECK(said.empty());
  }
}
