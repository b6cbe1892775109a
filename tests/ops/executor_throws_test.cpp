// SPDX-License-Identifier: Apache-2.0
// Work that throws, calls again, or is called from two threads: what arrives, and that nothing is done by half.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// No standard exception: any type arrives.
struct blown {
  int index;
};

/// The index of the work whose exception arrives; -1: none.
template <class Work>
int blown_by(kv::host_executor& exec, int count, Work const& work) {
  try {
    exec.for_each(count, work);
  } catch (blown const& caught) {
    return caught.index;
  }
  return -1;
}

/// How often each of `count` indices was visited by an executor that works.
bool works(kv::host_executor& exec, int count) {
  std::vector<std::atomic<int>> visits(as_size(count));
  exec.for_each(count, [&](int index, int) { ++visits[as_size(index)]; });
  for (std::atomic<int> const& each : visits) {
    if (each != 1) return false;
  }
  return true;
}

}  // namespace

TEST_SUITE("ops/executor") {
  TEST_CASE(
      "what work throws arrives at the caller, from the first, a middle or the last index, and the next call works") {
    for (int const threads : {1, 2, 3, 8}) {
      kv::host_executor exec(threads);
      for (int const count : {1, 2, 7, 100}) {
        for (int const bad : {0, count / 2, count - 1}) {
          std::vector<std::atomic<int>> visits(as_size(count));
          CHECK(blown_by(exec, count, [&](int index, int) {
                  ++visits[as_size(index)];
                  if (index == bad) throw blown{index};
                }) == bad);
          for (int i = 0; i < count; ++i) {
            int const seen = visits[as_size(i)];
            CHECK((i <= bad ? seen == 1 : seen <= 1));
          }
          CHECK(works(exec, count));
        }
      }
    }
  }

  TEST_CASE("of several exceptions that of the lowest index arrives, whichever came first") {
    for (int const threads : {1, 3}) {
      kv::host_executor exec(threads);
      for (int round = 0; round < 20; ++round) {
        CHECK(blown_by(exec, 50, [](int index, int) { throw blown{index}; }) == 0);
      }
    }
    kv::host_executor exec(3);
    std::atomic<bool> later{false};
    CHECK(blown_by(exec, 7, [&](int index, int) {
            if (index == 6) {
              later = true;
              throw blown{6};
            }
            if (index < 5) return;
            while (!later) std::this_thread::yield();
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            throw blown{5};
          }) == 5);
    CHECK(works(exec, 9));
  }

  TEST_CASE("the exception arrives when the last worker is back, and no further index is begun") {
    kv::host_executor exec(2);
    std::atomic<bool> begun{false};
    bool done = false;
    CHECK(blown_by(exec, 2, [&](int index, int) {
            if (index == 0) {
              while (!begun) std::this_thread::yield();
              throw blown{0};
            }
            begun = true;
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            done = true;
          }) == 0);
    CHECK(done);
    constexpr int many = 20000;
    std::atomic<int> visits{0};
    std::atomic<bool> thrown{false};
    CHECK(blown_by(exec, many, [&](int index, int) {
            ++visits;
            if (index == 0) {
              thrown = true;
              throw blown{0};
            }
            while (!thrown) std::this_thread::yield();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }) == 0);
    CHECK(visits < many);
  }

  TEST_CASE("a call from within work does all of its work, on the worker that calls and under its number") {
    for (int const threads : {1, 2, 3}) {
      kv::host_executor exec(threads);
      for (int const inner : {0, 1, 2, 10}) {
        for (int const outer : {1, 6}) {
          std::vector<std::atomic<int>> visits(as_size(outer * 10));
          std::atomic<int> strange{0};
          exec.for_each(outer, [&](int o, int worker) {
            auto const caller = std::this_thread::get_id();
            exec.for_each(inner, [&](int i, int inside) {
              if (inside != worker || std::this_thread::get_id() != caller) ++strange;
              exec.for_each(2, [&](int, int deepest) { strange += deepest != worker ? 1 : 0; });
              ++visits[as_size(o * 10 + i)];
            });
          });
          CHECK(strange == 0);
          for (int i = 0; i < outer * 10; ++i) {
            CHECK(visits[as_size(i)] == (i % 10 < inner ? 1 : 0));
          }
        }
      }
      CHECK(blown_by(exec, 4, [&](int o, int) {
              exec.for_each(3, [&](int i, int) {
                if (o == 2 && i == 1) throw blown{10 * o + i};
              });
            }) == 21);
      CHECK(works(exec, 10));
    }
  }

  TEST_CASE("while it is at work for one thread, another is refused and nothing runs; afterwards it may call") {
    kv::host_executor exec(2);
    for (int const count : {1, 4}) {  // one index is worked on by the caller alone
      std::atomic<int> ran{0};
      std::string said;
      exec.for_each(count, [&](int index, int) {
        if (index != 0) return;
        std::thread([&] { said = error_of([&] { exec.for_each(5, [&](int, int) { ++ran; }); }); }).join();
      });
      CHECK(ran == 0);
      CHECK(said ==
            "for_each: exec = at work for another thread, but an executor serves one thread at a time: give each its "
            "own");
      std::thread([&] { ran = works(exec, 5) ? 5 : 0; }).join();
      CHECK(ran == 5);
      CHECK(works(exec, 5));
    }
  }
}
