// SPDX-License-Identifier: Apache-2.0
// An executor on the threads of an engine: it starts none, and its results, exceptions and nested calls are the same.

#include "support/test.hpp"

namespace executor_of_engine_test {

using namespace kvpolicy_test;

/// Threads of an engine that live for one call: as many as there are parts, or one after another on the caller's.
struct pool {
  bool in_turn = false;
  int calls = 0;

  void operator()(int parts, std::function<void(int)> const& part) {
    ++calls;
    std::vector<std::thread> threads;
    for (int i = parts; i-- > 0;) {
      if (in_turn) part(i);
      if (!in_turn) threads.emplace_back([&part, i] { part(i); });
    }
    for (std::thread& each : threads) each.join();
  }
};

/// The scores of SnapKV's decision about some lanes.
std::vector<float> scores_of(kv::host_executor& exec) {
  mock_cache cache({.model = {.layers = 2, .query_heads = 8, .kv_heads = 4, .head_dim = 16}, .bound = 60});
  fill(cache, false);
  current_queries queries(cache, kv::codec::f32, 8, 8);
  auto const policy = kv::eviction{.score = kv::snapkv{.window = 8}, .budget = kv::per_lane{20}};
  auto [state, plan] = state_and_plan(exec, policy, cache.view());
  kv::signals const in{cache.lanes(), kv::keys_of(cache.view()), kv::recent_queries{queries.view()}};
  kv::decide(exec, policy, in, state, plan);
  std::vector<float> all;
  for (int i = 0; i < cache.lane_count(); ++i) {
    for (int e = 0; e < cache.committed(cache.lane_at(i)); ++e) all.push_back(plan.score(i, e));
  }
  return all;
}

std::size_t threads_of_process() {
  std::filesystem::directory_iterator const tasks("/proc/self/task");
  return as_size(std::distance(begin(tasks), end(tasks)));
}

TEST_SUITE("ops/executor_of_engine") {
  TEST_CASE("decisions are those of an executor with threads of its own, and no thread is started") {
    kv::host_executor own(3);
    std::vector<float> const expected = scores_of(own);
    for (bool const in_turn : {false, true}) {
      pool threads{in_turn};
      std::size_t const before = threads_of_process();
      kv::host_executor exec(3, threads);
      CHECK(threads_of_process() == before);
      CHECK(exec.threads() == 3);
      CHECK(scores_of(exec) == expected);
      CHECK(threads.calls > 0);
    }
  }

  TEST_CASE("every index is worked on once, by one of the workers, and nested calls stay with theirs") {
    pool threads;
    kv::host_executor exec(4, threads);
    for (int const count : {0, 1, 3, 100}) {
      std::vector<std::atomic<int>> seen(as_size(count * 5));
      exec.for_each(count, [&](int index, int worker) {
        exec.for_each(5, [&](int inner, int same) {
          CHECK_UNARY(same == worker && worker >= 0 && worker < 4);
          ++seen[as_size(index * 5 + inner)];
        });
      });
      for (auto const& each : seen) CHECK(each == 1);
    }
  }

  TEST_CASE("of several exceptions the one of the lowest index comes through, and the executor goes on") {
    for (bool const in_turn : {false, true}) {
      pool threads{in_turn};
      kv::host_executor exec(3, threads);
      auto const fails = [&] {
        exec.for_each(50, [](int index, int) {
          if (index % 10 == 3) throw std::runtime_error("index " + std::to_string(index));
        });
      };
      CHECK_THROWS_WITH_AS(fails(), "index 3", std::runtime_error);
      std::atomic<int> sum{0};
      exec.for_each(10, [&](int index, int) { sum += index; });
      CHECK(sum == 45);
    }
  }

  TEST_CASE("a pool that throws after a part did leaves no exception for the next call") {
    bool fails = true;
    auto in_turn = [&](int parts, kv::detail::worker_part const& part) {
      for (int i = 0; i < parts; ++i) part(i);
      if (fails) throw std::runtime_error("the pool");
    };
    kv::host_executor exec(2, in_turn);
    auto const work = [&] {
      exec.for_each(3, [&](int, int) {
        if (fails) throw std::runtime_error("a part");
      });
    };
    CHECK_THROWS_WITH_AS(work(), "the pool", std::runtime_error);
    fails = false;
    CHECK_NOTHROW(work());
  }

  TEST_CASE("an executor works on a thread that is at work for another one") {
    pool threads{true};
    kv::host_executor outer(2, threads), inner(2, threads);
    std::atomic<int> sum{0};
    outer.for_each(3, [&](int, int worker) {
      if (worker != 1) return;  // a pool that calls one part after another begins with the last
      inner.for_each(4, [&](int index, int) { sum += index; });
    });
    CHECK(sum == 18);
  }

  TEST_CASE("a pool that does nothing, and no worker, are refused") {
    auto idle = [](int, kv::detail::worker_part const&) {};
    kv::host_executor exec(2, idle);
    CHECK(error_of([&] { exec.for_each(2, [](int, int) {}); }) ==
          "for_each: run = no part of the work, but an engine's threads run every part before they return");
    CHECK(error_of([&] { kv::host_executor none(0, idle); }) ==
          "host_executor: threads = 0, but at least one worker works");
  }
}

}  // namespace executor_of_engine_test
