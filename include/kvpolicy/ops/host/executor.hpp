// SPDX-License-Identifier: Apache-2.0
// The host executor: worker threads, and scratch memory for each of them.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstring>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/executor.hpp>
#include <kvpolicy/ops/host/worker_threads.hpp>
#include <limits>
#include <new>
#include <span>
#include <vector>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace KVPOLICY_NAMESPACE {

/// The backend that runs on the calling machine's processor.
struct host {
  static constexpr bool reads_on_host = true;
};

/// Instruction sets for which the host's verbs have code. Each includes those before it. One is chosen at run time.
enum class isa { portable, avx2, avx512, avx512_bf16, amx };

namespace detail {

/// True if the processor multiplies tiles of bf16, and Linux allows it to this process. The first call asks for the
/// permission, which is the process's from then on.
inline bool may_use_amx() {
#if defined(__x86_64__) && defined(__linux__)
  static bool const may = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned tiles_of_bf16 = 1u << 22 | 1u << 24;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & tiles_of_bf16) != tiles_of_bf16) return false;
    constexpr long ask_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long tile_data = 18;
    return ::syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
  }();
  return may;
#else
  return false;
#endif
}

}  // namespace detail

/// The best instruction set that this processor supports, at most `most`.
///
/// A process may use AMX if Linux permits it: the first call whose `most` is `amx` asks for it, where the processor has
/// AMX. From then on Linux refuses alternate stacks for signal handlers (`sigaltstack`) that are smaller than some 12
/// KiB. Where there is one already, Linux does not permit AMX, and `avx512_bf16` is the last.
[[nodiscard]] inline isa best_isa(isa most = isa::amx) {
  isa best = isa::portable;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    best = __builtin_cpu_supports("avx512bf16") ? isa::avx512_bf16 : isa::avx512;
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    best = isa::avx2;
  }
#endif
  if (best == isa::avx512_bf16 && most == isa::amx && detail::may_use_amx()) best = isa::amx;
  return std::min(most, best);
}

namespace detail {

/// The tables of a family of kernels, one for each instruction set. A family without code for bf16 pairs or AMX uses
/// its table for AVX-512 there.
template <class Kernels>
struct by_isa {
  Kernels const* tables[5];

  constexpr by_isa(Kernels const& portable, Kernels const& avx2, Kernels const& avx512)
      : by_isa(portable, avx2, avx512, avx512, avx512) {}
  constexpr by_isa(Kernels const& portable, Kernels const& avx2, Kernels const& avx512, Kernels const& avx512_bf16,
                   Kernels const& amx)
      : tables{&portable, &avx2, &avx512, &avx512_bf16, &amx} {}
  [[nodiscard]] constexpr Kernels const& operator[](isa level) const { return *tables[static_cast<int>(level)]; }
};

// Where KVPOLICY_COMPILED_KERNELS is defined, kernels are in another object file: in the library kvpolicy::compiled,
// or, for tests, in one source.
#if defined(KVPOLICY_COMPILED) && !defined(KVPOLICY_COMPILED_KERNELS)
#define KVPOLICY_COMPILED_KERNELS
#endif

/// Allocates memory that begins with a cache line.
template <class T>
struct line_allocator {
  using value_type = T;
  static constexpr std::align_val_t alignment{64};

  line_allocator() = default;
  template <class U>
  line_allocator(line_allocator<U> const&) {}

  [[nodiscard]] T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(::operator new(count * sizeof(T), alignment));
  }
  void deallocate(T* from, std::size_t) noexcept { ::operator delete(from, alignment); }
  friend bool operator==(line_allocator const&, line_allocator const&) { return true; }
};

}  // namespace detail

/// Runs verbs on the host. `threads` workers, one of which is the caller, process the lanes of a call in parallel.
/// Results do not depend on the number of workers. It serves one calling thread at a time. In a forked process it
/// continues to work, and can be destroyed, without the other workers, which belong to the parent; executors that are
/// made there have workers of their own.
class host_executor : public serves_one_thread {
 public:
  using backend = host;

  /// A buffer of this executor: `count` values, initialised to zero. It begins with a cache line.
  template <class T>
  class buffer {
   public:
    buffer(host_executor&, std::size_t count) : values_(count) {}
    [[nodiscard]] T* data() { return values_.data(); }
    [[nodiscard]] T const* data() const { return values_.data(); }
    [[nodiscard]] std::size_t size() const { return values_.size(); }

   private:
    std::vector<T, detail::line_allocator<T>> values_;
  };

  explicit host_executor(int threads = 1) : host_executor(threads, best_isa()) {}

  /// Like above, but uses instruction sets up to `most` only, so that two machines compute the same results.
  host_executor(int threads, isa most) : serves_one_thread(detail::forks()), simd_level_(best_isa(most)) {
    expects(threads >= 1, "host_executor", "threads", threads, "at least the caller works");
    scratch_.resize(static_cast<std::size_t>(threads));
    workers_.start(*this, threads - 1);
  }

  /// Like above, but on the threads of an engine, and with none of its own: run(parts, part) calls part(i) once for
  /// each i below `parts`, which is `threads`, on any threads and in any order, and returns when all have returned. It
  /// may call several on one thread. Other calls of this executor wait until then. `run` must outlive the executor.
  template <class Run>
    requires std::invocable<Run&, int, detail::worker_part const&>
  host_executor(int threads, Run& run, isa most = best_isa()) : host_executor(1, most) {
    expects(threads >= 1, "host_executor", "threads", threads, "at least one worker works");
    scratch_.resize(static_cast<std::size_t>(threads));
    workers_.start(*this, threads, {&run, [](void* pool, int parts, detail::worker_part const& part) {
                                      (*static_cast<Run*>(pool))(parts, part);
                                    }});
  }

  [[nodiscard]] int threads() const { return static_cast<int>(scratch_.size()); }
  [[nodiscard]] isa simd_level() const { return simd_level_; }

  /// Makes every worker's scratch at least `bytes` large. `make_plan` and `make_state` call it; decisions never grow
  /// scratch. If memory runs out, or the executor works for another thread, no scratch has changed.
  void reserve(std::size_t bytes) {
    detail::sole_use const in_use("reserve", *this);
    for (auto& mine : scratch_) mine.reserve(bytes);
    for (auto& mine : scratch_) {
      if (mine.size() < bytes) mine.resize(bytes);
    }
  }

  /// The bytes of scratch that each worker has.
  [[nodiscard]] std::size_t reserved() const { return scratch_.front().size(); }

  /// Copies bytes between this executor's buffers.
  static void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  /// A worker's scratch memory. It begins with a cache line.
  [[nodiscard]] std::span<std::byte> scratch(int worker) { return scratch_[static_cast<std::size_t>(worker)]; }

  /// Calls work(index, worker) for every index below `count`, in any order, on all threads.
  ///
  /// - `work` may throw. Then no further index is started, all workers finish, and the exception of the lowest index
  ///   that threw is rethrown, as with one thread. What earlier calls of `work` wrote stays. The executor remains
  ///   usable.
  /// - `work` may call `for_each` of this executor. The worker that does so runs all of the inner call alone, under its
  ///   own number, so the inner call uses the same scratch as the outer one.
  /// - throws: what `work` throws; `invalid_argument` if the executor is in use by another thread. Then nothing ran.
  template <class Work>
  void for_each(int count, Work const& work) {
    detail::sole_use const in_use("for_each", *this);
    workers_.for_each(count, work);
  }

  /// Like above, for work that is short: `bytes` is about what one index reads and writes. Calls work(begin, end,
  /// worker) for ranges that together are all indices. The other threads are woken only if that takes less time than
  /// they save.
  template <class Work>
  void for_each_range(int count, std::int64_t bytes, Work const& work) {
    detail::sole_use const in_use("for_each", *this);
    std::int64_t const all = count * (bytes + 2048);  // an index costs as much as reading 2 KiB, and its bytes
    bool const alone = threads() == 1 || all < 3'000'000;
    int const parts = alone ? 1 : std::min(count, 8 * threads());
    auto const edge = [&](int part) { return static_cast<int>(std::int64_t{count} * part / parts); };
    workers_.for_each(
        count > 0 ? parts : 0, [&](int part, int worker) { work(edge(part), edge(part + 1), worker); }, alone);
  }

 private:
  isa simd_level_ = isa::portable;
  std::vector<std::vector<std::byte, detail::line_allocator<std::byte>>> scratch_;
  detail::worker_threads workers_;  ///< last member, so that the threads are destroyed first
};

namespace detail {

/// Bytes that `scratch_arena::take<T>(count)` uses up: whole cache lines.
template <class T>
[[nodiscard]] constexpr std::size_t scratch_of(std::size_t count) {
  return (count * sizeof(T) + 63) / 64 * 64;
}

/// Allocates pieces of a worker's scratch, one after another. Each begins with a cache line, because a vector that lies
/// in two lines is read twice.
///
/// - throws: `invalid_argument` if less scratch is left than is asked for. It never touches memory behind the scratch.
class scratch_arena {
 public:
  explicit scratch_arena(std::span<std::byte> memory) : memory_(memory) {}

  template <class T>
  [[nodiscard]] T* take(std::size_t count) {
    std::size_t const bytes = scratch_of<T>(count);
    expects(bytes <= memory_.size(), "scratch", "bytes", memory_.size(), [&] {
      return "a verb needs " + std::to_string(bytes) +
             ": the scorer, recorder or applier that runs it names it (using " +
             "verbs = kvpolicy::verbs<...>), and make_state or make_plan reserves scratch for it";
    });
    auto* const piece = reinterpret_cast<T*>(memory_.data());
    memory_ = memory_.subspan(bytes);
    return piece;
  }

 private:
  std::span<std::byte> memory_;
};

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
