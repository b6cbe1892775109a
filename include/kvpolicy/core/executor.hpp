// SPDX-License-Identifier: Apache-2.0
// The concept `executor`: where work runs, and the owner of scratch memory. It serves one thread at a time.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/config.hpp>
#include <kvpolicy/core/contract/error.hpp>

namespace KVPOLICY_NAMESPACE {

/// An executor is the first argument of every call. It names its backend, allocates buffers in its own memory, and owns
/// the scratch memory. `make_plan` and `make_state` size the scratch with `reserve`, so that a decision allocates
/// nothing. Use one executor for each stream. One that derives from `serves_one_thread` refuses the calls of a thread
/// while it works for another.
///
/// An executor that derives from one of the library's may watch what it runs, by two members that are called where it
/// has them. `range(char const* verb)` is called when a verb begins; what it returns is destroyed when the verb
/// returns, which on a device is when its kernels are in the stream. `decided(policy, plan)` is called when a decision
/// has been made; on the host `plan.report()` says what it did. Neither may throw.
template <class E>
concept executor = requires(E& exec, std::size_t bytes, std::byte* to, std::byte const* from) {
  typename E::backend;
  typename E::template buffer<float>;
  exec.reserve(bytes);
  { exec.reserved() } -> std::convertible_to<std::size_t>;
  exec.copy(to, from, bytes);
};

class serves_one_thread;

namespace detail {

/// What the calling thread is to executors.
struct thread_role {
  std::uint32_t number = 0;                      ///< no other thread has it, before or after; 0: not yet given
  int worker = 0;                                ///< its number among the workers of the executor
  serves_one_thread const* works_for = nullptr;  ///< the executor whose worker it is
};

[[nodiscard]] inline thread_role& this_thread_role() {
  static thread_local thread_role mine;
  static std::atomic<std::uint32_t> numbers{0};
  if (mine.number == 0) mine.number = ++numbers;
  return mine;
}

}  // namespace detail

/// A base of executors that share memory between their calls. Every call of the library takes such an executor for its
/// thread, before it checks anything, until it returns; calls inside of it, and inside of its work, belong to it.
class serves_one_thread {
 public:
  serves_one_thread() = default;
  /// `forks` counts the forks of the process. A thread that is not in this process any more has given back what it
  /// took.
  explicit serves_one_thread(std::atomic<unsigned> const& forks) : forks_(&forks) {}
  serves_one_thread(serves_one_thread const&) = delete;
  serves_one_thread& operator=(serves_one_thread const&) = delete;

  /// Takes the executor for the calling thread. False if it has been this thread's before.
  ///
  /// - throws: `invalid_argument` if it works for another thread.
  [[nodiscard]] bool take(char const* call) {
    detail::thread_role const& me = detail::this_thread_role();
    std::uint64_t holder = holder_.load(std::memory_order_relaxed);
    if (static_cast<std::uint32_t>(holder) == me.number || me.works_for == this) return false;
    std::uint64_t const process = forks_ != nullptr ? forks_->load(std::memory_order_relaxed) : 0;
    while (holder == 0 || holder >> 32 != process) {
      if (holder_.compare_exchange_weak(holder, process << 32 | me.number, std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
        return true;
      }
    }
    detail::reject(call, "exec", "at work for another thread",
                   "an executor serves one thread at a time: give each its own");
  }
  void give_back() { holder_.store(0, std::memory_order_release); }

 private:
  std::atomic<std::uint64_t> holder_{0};  ///< the forks before this process, and the number of the thread; 0: nobody
  std::atomic<unsigned> const* forks_ = nullptr;
};

namespace detail {

/// An executor is the calling thread's while this lives.
class sole_use {
 public:
  template <class Executor>
  sole_use(char const* call, Executor& exec) {
    if constexpr (std::derived_from<Executor, serves_one_thread>) {
      if (exec.take(call)) taken_ = &exec;
    }
  }
  ~sole_use() { end(); }
  sole_use(sole_use const&) = delete;
  sole_use& operator=(sole_use const&) = delete;

  void end() {
    if (taken_ != nullptr) taken_->give_back();
    taken_ = nullptr;
  }

 private:
  serves_one_thread* taken_ = nullptr;
};

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
