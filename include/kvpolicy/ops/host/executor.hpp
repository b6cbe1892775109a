// The host executor: a few threads, and scratch memory for each of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/executor.hpp>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// The backend that runs on the calling machine's processor.
struct host {
  static constexpr bool reads_on_host = true;
};

/// Instruction sets that the host's verbs have code for, each with those before it. Chosen when the program runs.
enum class isa { portable, avx2, avx512, avx512_bf16 };

/// The best of them that this processor has.
[[nodiscard]] inline isa best_isa() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return __builtin_cpu_supports("avx512bf16") ? isa::avx512_bf16 : isa::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    return isa::avx2;
  }
#endif
  return isa::portable;
}

/// Runs verbs on the host. `threads` workers share the lanes of a call, the caller being one of them; the result does
/// not depend on how many there are.
class host_executor {
 public:
  using backend = host;

  /// Memory of this executor: `count` values, zeroed.
  template <class T>
  class buffer {
   public:
    buffer(host_executor&, std::size_t count) : values_(count) {}
    [[nodiscard]] T* data() { return values_.data(); }
    [[nodiscard]] T const* data() const { return values_.data(); }
    [[nodiscard]] std::size_t size() const { return values_.size(); }

   private:
    std::vector<T> values_;
  };

  explicit host_executor(int threads = 1) : host_executor(threads, best_isa()) {}

  /// As above, with instructions up to `most` at most, so that two machines compute alike.
  host_executor(int threads, isa most) : host_executor(idle{}) {
    expects(threads >= 1, "host_executor", "threads", threads, "at least the caller works");
    speaks_ = std::min(most, best_isa());
    scratch_.resize(static_cast<std::size_t>(threads));
    // If the system has no more threads, the destructor ends those that started: the object is complete already.
    for (int worker = 1; worker < threads; ++worker) pool_.emplace_back([this, worker] { serve(worker); });
  }

  host_executor(host_executor const&) = delete;
  host_executor& operator=(host_executor const&) = delete;

  ~host_executor() { stop(); }

  [[nodiscard]] int threads() const { return static_cast<int>(scratch_.size()); }
  [[nodiscard]] isa speaks() const { return speaks_; }

  /// Makes every worker's scratch at least `bytes`. Called by make_plan and make_state; decisions never grow it.
  void reserve(std::size_t bytes) {
    for (auto& mine : scratch_) {
      if (mine.size() < bytes) mine.resize(bytes);
    }
  }

  /// Bytes of scratch that every worker has.
  [[nodiscard]] std::size_t reserved() const { return scratch_.front().size(); }

  /// Copies bytes between this executor's buffers.
  static void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  /// A worker's scratch memory, aligned for any number.
  [[nodiscard]] std::span<std::byte> scratch(int worker) { return scratch_[static_cast<std::size_t>(worker)]; }

  /// work(index, worker) for every index below `count`, in any order, on all threads. `work` does not throw.
  template <class Work>
  void for_each(int count, Work const& work) {
    if (pool_.empty() || count <= 1) {
      for (int index = 0; index < count; ++index) work(index, 0);
      return;
    }
    {
      std::lock_guard const lock(mutex_);
      job_ = {[](void const* of, int index, int worker) { (*static_cast<Work const*>(of))(index, worker); }, &work,
              count};
      next_ = 0;
      busy_ = static_cast<int>(pool_.size());
      ++round_;
    }
    wake_.notify_all();
    drain(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  struct idle {};
  explicit host_executor(idle) {}

  struct job {
    void (*call)(void const*, int, int) = nullptr;
    void const* work = nullptr;
    int count = 0;
  };

  void stop() {
    {
      std::lock_guard const lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& one : pool_) one.join();
  }

  void drain(int worker) {
    for (int index = next_++; index < job_.count; index = next_++) job_.call(job_.work, index, worker);
  }

  void serve(int worker) {
    long seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stopping_ || round_ != seen; });
      if (stopping_) return;
      seen = round_;
      lock.unlock();
      drain(worker);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  isa speaks_ = isa::portable;
  std::vector<std::vector<std::byte>> scratch_;
  std::vector<std::thread> pool_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  job job_{};
  std::atomic<int> next_{0};
  int busy_ = 0;
  long round_ = 0;
  bool stopping_ = false;
};
static_assert(executor<host_executor>);

namespace detail {

/// Hands out pieces of a worker's scratch, in order.
class scratch_arena {
 public:
  explicit scratch_arena(std::span<std::byte> memory) : memory_(memory) {}

  template <class T>
  [[nodiscard]] T* take(std::size_t count) {
    assert((count * sizeof(T) + 15) / 16 * 16 <= memory_.size());
    auto* const piece = reinterpret_cast<T*>(memory_.data());
    memory_ = memory_.subspan((count * sizeof(T) + 15) / 16 * 16);
    return piece;
  }

 private:
  std::span<std::byte> memory_;
};

/// Bytes that `take<T>(count)` uses up.
template <class T>
[[nodiscard]] constexpr std::size_t scratch_of(std::size_t count) {
  return (count * sizeof(T) + 15) / 16 * 16;
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
