// SPDX-License-Identifier: Apache-2.0
// Decides on the threads of an engine that has a pool of its own: kvpolicy starts no thread.
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "engine.hpp"

namespace {

// example-begin pool
/// A pool as an engine has one: three threads that wait for a call and take its parts in turn.
class my_threads {
 public:
  /// Calls part(i) once for each i below `parts`, and returns when all have returned.
  void operator()(int parts, std::function<void(int)> const& part) {
    std::unique_lock lock(mutex_);
    part_ = &part, next_ = 0, parts_ = parts, left_ = parts;
    wake_.notify_all();
    done_.wait(lock, [this] { return left_ == 0; });
  }
  // example-end pool

  my_threads() = default;
  ~my_threads() {
    {
      std::lock_guard const lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& each : threads_) each.join();
  }
  my_threads(my_threads const&) = delete;
  my_threads& operator=(my_threads const&) = delete;

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || next_ < parts_; });
      if (stopping_) return;
      int const mine = next_++;
      lock.unlock();
      (*part_)(mine);
      lock.lock();
      if (--left_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::function<void(int)> const* part_ = nullptr;
  int next_ = 0, parts_ = 0, left_ = 0;
  bool stopping_ = false;
  std::thread threads_[3] = {std::thread([this] { serve(); }), std::thread([this] { serve(); }),
                             std::thread([this] { serve(); })};
};

}  // namespace

int main() {
  // example-begin executor
  my_threads pool;
  kv::host_executor exec(3, pool);  // three workers; the pool must live longer than the executor
  // example-end executor
  my_pool memory;
  my_forward forward(memory, 200);
  kv::cache cache = memory.view();
  auto const policy = kv::policies::snapkv({.budget = 48});
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  kv::append(exec, cache, state, {.tokens = 200, .position = 0});
  kv::signals const in{cache.lanes, kv::keys_of(cache), forward.queries()};
  kv::observe(exec, policy, in, state);
  kv::decide(exec, policy, in, state, plan);
  std::printf("%d workers keep %d of 200 entries in each of %d lanes\n", exec.threads(),
              static_cast<int>(plan.keep().listed(0).size()), plan.keep().segments());
}
