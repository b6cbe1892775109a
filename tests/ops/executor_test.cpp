// The host executor: every index once, on any number of threads, and scratch that only reserve makes larger.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <kvpolicy/kvpolicy.hpp>
#include <thread>
#include <vector>

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
