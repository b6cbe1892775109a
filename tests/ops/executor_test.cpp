// SPDX-License-Identifier: Apache-2.0
// The host executor: every index once, on any number of threads, and scratch that only reserve makes larger.

#include "support/test.hpp"

namespace kv = kvpolicy;

TEST_SUITE("ops/executor") {
  TEST_CASE("every index is visited exactly once, by a worker that exists, in round after round") {
    for (int const threads : {1, 2, 5}) {
      kv::host_executor exec(threads);
      CHECK(exec.threads() == threads);
      for (int const count : {0, 1, 2, 7, 1000}) {
        std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
        std::atomic<bool> strange{false};
        for (int round = 0; round < 3; ++round) {
          exec.for_each(count, [&](int index, int worker) {
            if (worker < 0 || worker >= threads) strange = true;
            ++visits[static_cast<std::size_t>(index)];
          });
        }
        CHECK(!strange);
        for (std::atomic<int> const& each : visits) CHECK(each == 3);
      }
    }
  }

  TEST_CASE("ranges are all indices, once, whether the work is worth a thread or not, and inside of other work") {
    for (int const threads : {1, 2, 5}) {
      kv::host_executor exec(threads);
      for (int const count : {0, 1, 3, 16, 1000}) {
        for (std::int64_t const bytes : {std::int64_t{0}, std::int64_t{1} << 30}) {
          std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
          std::atomic<bool> strange{false};
          auto const visit = [&](int begin, int end, int worker) {
            if (worker < 0 || worker >= threads || begin >= end) strange = true;
            for (int index = begin; index < end; ++index) ++visits[static_cast<std::size_t>(index)];
          };
          exec.for_each_range(count, bytes, visit);
          exec.for_each(1, [&](int, int outer) {
            exec.for_each_range(count, bytes, [&](int begin, int end, int worker) {
              if (worker != outer) strange = true;
              visit(begin, end, worker);
            });
          });
          CHECK(!strange);
          for (std::atomic<int> const& each : visits) CHECK(each == 2);
        }
      }
    }
  }

  TEST_CASE("a thread that is late misses a call, and serves the next one") {
    kv::host_executor exec(3);
    std::atomic<int> sum{0};
    for (int round = 0; round < 20000; ++round) {
      exec.for_each(2, [&](int index, int) { sum += index + 1; });
      if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    CHECK(sum == 60000);
  }

  TEST_CASE("a call ends when the last worker has done what it began") {
    kv::host_executor exec(2);
    std::atomic<int> begun{0};
    int done[2] = {};
    exec.for_each(2, [&](int index, int worker) {
      ++begun;
      while (begun < 2) std::this_thread::yield();  // each worker has one
      if (worker != 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      done[index] = 1;
    });
    CHECK(done[0] + done[1] == 2);
  }

  TEST_CASE("no two workers share scratch, and reserve never makes it smaller") {
    kv::host_executor exec(3);
    exec.reserve(100);
    exec.reserve(10);
    for (int worker = 0; worker < 3; ++worker) {
      CHECK(exec.scratch(worker).size() >= 100);
      for (std::byte& each : exec.scratch(worker)) each = static_cast<std::byte>(worker);
    }
    for (int worker = 0; worker < 3; ++worker) {
      for (std::byte const each : exec.scratch(worker)) CHECK(each == static_cast<std::byte>(worker));
    }
  }

  TEST_CASE("a buffer starts as zeros") {
    kv::host_executor exec;
    kv::host_executor::buffer<int> const made(exec, 5);
    CHECK(made.size() == 5);
    for (std::size_t i = 0; i < 5; ++i) CHECK(made.data()[i] == 0);
  }
}
