// SPDX-License-Identifier: Apache-2.0
// After fork() the child has none of the parent's threads: its executors work alone, and end without waiting.

#if __has_include(<unistd.h>)

#include "laws/refusal.hpp"
#include "support/forked.hpp"

namespace {

using namespace kvpolicy_test;

/// All of the work, on the caller: the only worker that is left.
bool works_alone(kv::host_executor& exec) {
  std::vector<int> visits(50);
  bool alone = true;
  exec.for_each(50, [&](int index, int worker) {
    ++visits[as_size(index)];
    alone = alone && worker == 0;
  });
  return alone && visits == std::vector<int>(50, 1);
}

bool throws_and_nests(kv::host_executor& exec) {
  int visits = 0;
  bool thrown = false;
  try {
    exec.for_each(10, [&](int index, int) {
      exec.for_each(3, [&](int, int) { ++visits; });
      if (index == 4) throw 4;
    });
  } catch (int) {
    thrown = true;
  }
  return thrown && visits == 15;
}

}  // namespace

TEST_SUITE("ops/executor") {
  TEST_CASE("in a forked process for_each does all of its work, and the executor can be destroyed") {
    for (int const threads : {1, 3}) {
      for (bool const used : {false, true}) {
        auto exec = std::make_unique<kv::host_executor>(threads);
        if (used) exec->for_each(10, [](int, int) {});
        CHECK(in_a_fork([&] {
                bool good = works_alone(*exec) && throws_and_nests(*exec) && exec->threads() == threads;
                exec->reserve(1000);
                good = good && exec->scratch(threads - 1).size() >= 1000;
                pid_t const grandchild = ::fork();
                if (grandchild == 0) end_child([&] { return works_alone(*exec); });
                good = good && ending_of(grandchild) == ending::all_good;
                exec.reset();
                return good;
              }) == ending::all_good);
        exec->for_each(10, [](int, int) {});  // the parent's is what it was
      }
    }
  }

  TEST_CASE("a forked process decides as its parent does") {
    working_batch now;
    kv::host_executor exec(3);
    auto plan = kv::make_plan(exec, now.policy, now.view);
    exec.for_each(10, [](int, int) {});
    CHECK(in_a_fork([&] {
            kv::decide(exec, now.policy, now.signals(), now.state, plan);
            bool same = plan.report() == now.plan.report() && plan.keep().segments() == 8;
            for (int i = 0; i < 8; ++i) same = same && listed(plan.keep(), i) == listed(now.plan.keep(), i);
            return same;
          }) == ending::all_good);
  }

  TEST_CASE("a process that another thread forks off in the middle of a call goes on working, too") {
    for (int round = 0; round < 20; ++round) {
      kv::host_executor exec(3);
      std::atomic<bool> working{false};
      std::atomic<bool> enough{false};
      std::thread owner([&] {
        while (!enough) {
          exec.for_each(100, [&](int, int) { working = true; });
        }
      });
      while (!working) std::this_thread::yield();
      auto const found = in_a_fork([&] {
        bool const good = works_alone(exec) && throws_and_nests(exec);
        exec.~host_executor();
        return good;
      });
      enough = true;
      owner.join();
      CHECK(found == ending::all_good);
      if (found != ending::all_good) break;
    }
  }

  TEST_CASE("a process that is forked off inside of the work and comes back is refused, and does not wait for ever") {
    kv::host_executor exec(2);
    std::atomic<pid_t> child{0};
    std::string const said = error_of([&] {
      exec.for_each(4, [&](int, int worker) {
        if (worker == 0 && child == 0) {
          child = ::fork();
          if (child == 0) child = -1;
        }
        while (child == 0) std::this_thread::yield();
      });
    });
    bool const refused =
        said ==
        "for_each: work = a fork of the process, but the child has no other workers: it ends inside of the work that "
        "forked";
    if (child == -1) ::_exit(static_cast<int>(refused ? ending::all_good : ending::bad));
    CHECK(said.empty());
    CHECK(ending_of(child) == ending::all_good);
  }

#if !defined(__SANITIZE_THREAD__)
  TEST_CASE("an executor that is made in a forked process has threads of its own") {
    kv::host_executor const parents(3);
    CHECK(in_a_fork([] {
            kv::host_executor exec(2);
            std::atomic<int> begun{0};
            exec.for_each(2, [&](int, int) {  // each index waits for the other
              ++begun;
              while (begun < 2) std::this_thread::yield();
            });
            return begun == 2;
          }) == ending::all_good);
  }
#endif
}

#endif
