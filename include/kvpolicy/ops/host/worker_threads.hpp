// SPDX-License-Identifier: Apache-2.0
// Worker threads that process the indices of a call: threads of an executor, or those of the engine. Work may throw or
// make nested calls, and the process may be forked.
#pragma once

#include <atomic>
#include <condition_variable>
#include <ctime>
#include <exception>
#include <kvpolicy/core/executor.hpp>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#if __has_include(<pthread.h>) && __has_include(<unistd.h>) && !defined(_WIN32)
#include <pthread.h>
#endif

namespace KVPOLICY_NAMESPACE::detail {

/// How many forks there were between the first process and this one, counted from the first call on. A child process
/// has none of its parent's threads.
[[nodiscard]] inline std::atomic<unsigned> const& forks() {
  static std::atomic<unsigned> count{0};
#if __has_include(<pthread.h>) && __has_include(<unistd.h>) && !defined(_WIN32) && defined(__cpp_exceptions)
  [[maybe_unused]] static bool const counts = [] {
    if (::pthread_atfork(nullptr, nullptr, [] { ++count; }) != 0) throw std::bad_alloc();
    return true;
  }();
#endif
  return count;
}

/// The nanoseconds since `begin`, or less than 0 if the system's clock was set meanwhile. `<chrono>` would add a
/// fiftieth to the time that the umbrella header takes to compile.
inline long long nanoseconds_since(std::timespec const& begin) {
  std::timespec now{};
  static_cast<void>(std::timespec_get(&now, TIME_UTC));
  return 1'000'000'000LL * (now.tv_sec - begin.tv_sec) + (now.tv_nsec - begin.tv_nsec);
}

/// Waits up to some 20 us, awake, until `reached()`: a thread that sleeps takes longer to wake. A step calls several
/// verbs, one after another, so that what is waited for is often near.
template <class Condition>
bool soon(Condition const& reached) {
  std::timespec begin{};
  static_cast<void>(std::timespec_get(&begin, TIME_UTC));
  long long waited = 0;
  while (0 <= waited && waited < 20'000) {
    for (int i = 0; i < 32; ++i) {
      if (reached()) return true;
#if defined(__x86_64__)
      __asm__ __volatile__("pause");
#elif defined(__aarch64__)
      __asm__ __volatile__("yield");
#endif
    }
    waited = nanoseconds_since(begin);
  }
  return false;
}

class worker_threads;

/// One worker's part of a call, as an engine's threads run it.
class worker_part {
 public:
  explicit worker_part(worker_threads& of) : of_(&of) {}
  void operator()(int worker) const;

 private:
  worker_threads* of_;
};

/// An engine's own threads: run(parts, part) calls part(i) once for each i below `parts`, on any threads.
struct threads_of_engine {
  void* pool = nullptr;
  void (*run)(void* pool, int parts, worker_part const& part) = nullptr;
};

/// The caller of `for_each` and further threads. A thread that wakes late misses a call whose work is done: nobody
/// waits for it. In a process that was forked after `start`, these threads do not exist: the caller does all of the
/// work, and nothing waits for them or touches a lock that they may have locked.
class worker_threads {
 public:
  worker_threads() : shared_() {}
  worker_threads(worker_threads const&) = delete;
  worker_threads& operator=(worker_threads const&) = delete;
  ~worker_threads() {
    if (forked()) return;
    {
      std::lock_guard const lock(shared_.mutex);
      shared_.stopping = true;
    }
    shared_.wake.notify_all();
    for (int i = 0; i < started_; ++i) slots_[static_cast<std::size_t>(i)].thread.join();
    for (int i = 0; i < started_; ++i) slots_[static_cast<std::size_t>(i)].thread.~thread();
    shared_.~shared_by_all();
  }

  /// Starts `count` threads beside the caller, for an executor; it is called once. If the system cannot start them all,
  /// its exception passes through, and the destructor ends those that started.
  void start(serves_one_thread const& executor, int count) {
    if (count == 0) return;
    executor_ = &executor;
    waits_awake_ = static_cast<unsigned>(count) < std::thread::hardware_concurrency();
    forks_ = &forks();
    forks_at_start_ = *forks_;
    slots_ = std::make_unique<slot[]>(static_cast<std::size_t>(count));
    for (; started_ < count; ++started_) {
      new (&slots_[static_cast<std::size_t>(started_)].thread) std::thread([this, me = started_ + 1] { serve(me); });
    }
  }

  /// Uses an engine's threads for `count` workers instead.
  void start(serves_one_thread const& executor, int count, threads_of_engine const& engine) {
    executor_ = &executor;
    engine_ = engine;
    parts_ = count;
  }

  /// See host_executor::for_each, whose caller has taken the executor. If `alone`, the caller does all of the work.
  template <class Work>
  void for_each(int count, Work const& work, bool alone = false) {
    if ((started_ == 0 && parts_ == 0) || forked()) return work_alone(count, work, 0);
    thread_role const& me = this_thread_role();
    if (me.works_for == executor_) return work_alone(count, work, me.worker);
    if (working_) return work_alone(count, work, 0);
    working_ = true;
    at_work const until_the_end{working_};
    if (alone || count <= 1) return work_alone(count, work, 0);
    share(
        {[](void const* of, int index, int worker) { (*static_cast<Work const*>(of))(index, worker); }, &work, count});
  }

 private:
  friend class worker_part;

  struct job {
    void (*call)(void const*, int, int) = nullptr;
    void const* work = nullptr;
    int count = 0;
  };

  /// State that must not be destroyed in a forked process, because other threads seem to use it for ever.
  struct shared_by_all {
    std::mutex mutex;
    std::condition_variable wake;
    std::condition_variable done;
    std::exception_ptr thrown;
    int thrown_by = 0;           ///< index of the call of `work` that threw it
    std::atomic<int> inside{0};  ///< further threads that process the job
    std::atomic<long> round{0};  ///< number of the newest job
    bool open = false;           ///< there is a job that threads may join
    std::atomic<bool> stopping{false};
  };

  /// A thread whose destructor need not run.
  union slot {
    slot() {}
    ~slot() {}
    std::thread thread;
  };

  struct at_work {
    bool& flag;
    ~at_work() { flag = false; }
  };

  [[nodiscard]] bool forked() const {
    return forks_ != nullptr && forks_->load(std::memory_order_relaxed) != forks_at_start_;
  }

  template <class Work>
  static void work_alone(int count, Work const& work, int worker) {
    for (int index = 0; index < count; ++index) work(index, worker);
  }

  void share(job const& all) {
    if (parts_ > 0) return share_with_engine(all);
    {
      std::lock_guard const lock(shared_.mutex);
      job_ = all;
      next_ = 0;
      shared_.open = true;
      ++shared_.round;
    }
    shared_.wake.notify_all();
    drain(0);
    expects(!forked(), "for_each", "work", "a fork of the process",
            "the child has no other workers: it ends inside of the work that forked");
    std::unique_lock lock(shared_.mutex);
    shared_.open = false;
    auto const alone = [this] { return shared_.inside == 0; };
    if (waits_awake_ && !alone()) {
      lock.unlock();
      static_cast<void>(soon(alone));
      lock.lock();
    }
    shared_.done.wait(lock, alone);
    std::exception_ptr const thrown = std::exchange(shared_.thrown, nullptr);
    lock.unlock();
    if (thrown) std::rethrow_exception(thrown);
  }

  void share_with_engine(job const& all) {
    job_ = all;
    next_ = 0;
    shared_.thrown = nullptr;  // if an engine's threads threw in the call before, nobody has taken it
    engine_.run(engine_.pool, parts_, worker_part(*this));
    std::exception_ptr const thrown = std::exchange(shared_.thrown, nullptr);
    if (thrown) std::rethrow_exception(thrown);
    expects(next_ >= all.count, "for_each", "run", "no part of the work",
            "an engine's threads run every part before they return");
  }

  /// One part of a call, on a thread of the engine, which may be a worker of another executor.
  void work_for_engine(int worker) {
    thread_role& mine = this_thread_role();
    thread_role const before = mine;
    mine.works_for = executor_;
    mine.worker = worker;
    drain(worker);
    mine.works_for = before.works_for;
    mine.worker = before.worker;
  }

  void drain(int worker) {
    int index = 0;
#if defined(__cpp_exceptions)  // without them config.hpp has said all there is to say
    try {
      for (index = next_++; index < job_.count; index = next_++) job_.call(job_.work, index, worker);
    } catch (...) {
      note_thrown(index);
    }
#endif
  }

  /// Stops handing out indices. All lower indices were handed out before, so the lowest index that throws always runs,
  /// and its exception is the one that is rethrown, as it would be with one thread.
  void note_thrown(int index) {
    next_ = job_.count;
    std::lock_guard const lock(shared_.mutex);
    if (shared_.thrown && shared_.thrown_by < index) return;
    shared_.thrown = std::current_exception();
    shared_.thrown_by = index;
  }

  void serve(int worker) {
    this_thread_role().works_for = executor_;
    this_thread_role().worker = worker;
    long seen = 0;
    auto const called = [&] { return shared_.stopping || shared_.round != seen; };
    for (;;) {
      if (waits_awake_) static_cast<void>(soon(called));
      std::unique_lock lock(shared_.mutex);
      shared_.wake.wait(lock, called);
      if (shared_.stopping) return;
      seen = shared_.round;
      if (!shared_.open) continue;
      ++shared_.inside;
      lock.unlock();
      drain(worker);
      lock.lock();
      if (--shared_.inside == 0) shared_.done.notify_one();
    }
  }

  std::atomic<unsigned> const* forks_ = nullptr;
  unsigned forks_at_start_ = 0;  ///< value of forks() when the threads started
  std::unique_ptr<slot[]> slots_;
  int started_ = 0;
  bool waits_awake_ = false;  ///< there is a processor for each thread
  bool working_ = false;      ///< the caller is inside of `for_each`; only the thread that has the executor asks
  serves_one_thread const* executor_ = nullptr;
  threads_of_engine engine_{};
  int parts_ = 0;  ///< workers on the engine's threads; 0: it has none for this executor
  job job_{};
  std::atomic<int> next_{0};
  union {
    shared_by_all shared_;
  };
};

inline void worker_part::operator()(int worker) const { of_->work_for_engine(worker); }

}  // namespace KVPOLICY_NAMESPACE::detail
