// SPDX-License-Identifier: Apache-2.0
// The interface that a kernel has to its block of threads, with the collectives that every block has, and what is built
// on it: shared memory, the last block, launches.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/config.hpp>
#include <kvpolicy/ops/cuda/run/backend.hpp>
#include <kvpolicy/ops/cuda/run/block_values.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

/// A block of threads, as a kernel sees it. Every thread of the block runs the kernel. All threads of the block must
/// reach `sync` and the collectives of a block, and all threads of a warp must reach `sync_warp`, `ballot`, `shuffle`,
/// `reduce_warp`, `reduce_warp_batched` and `multiply_16x8x16`. `sync` orders the memory of the block, and
/// `sync_warp` that of the warp. `ballot`, `shuffle` and the other collectives of a warp order no memory, and those of
/// a block none but their storage.
///
/// - `index()` and `blocks()` are blockIdx.x and gridDim.x; `thread()` and `threads()` are threadIdx.x and blockDim.x.
/// - `shared()` is the block's shared memory, aligned to 16 bytes.
/// - A launch may group neighbouring blocks into clusters, whose blocks run at the same time. `cluster_rank()` is the
///   place of the block in its cluster, and `cluster_blocks()` is how many blocks the cluster has: 0 and 1 without one.
/// - `sync_cluster()` is a barrier for all threads of the cluster, which orders the memory of all its blocks.
/// - `of_block(rank, mine)` points to the place in the shared memory of block `rank` that `mine` points to in this
///   block's. Another block's memory may be accessed only after a first `sync_cluster`, because the block may not run
///   before, and only before a last one, because the block may have ended then.
/// - `ballot(vote)` and `shuffle(value, from)` are __ballot_sync and __shfl_sync of the whole warp.
/// - `reduce_warp<Width>(value, combine)` combines the values of `Width` neighbouring threads of a warp, where `Width`
///   is a power of two. `reduce(storage, value, combine)` combines the values of all threads of the block. Every thread
///   has the result. The order is fixed: the result has the same bits for the same number of threads.
/// - `reduce_warp_batched<Width>(values, combine)` reduces each number of an array over `Width` neighbouring threads of
///   a warp, as `reduce_warp` does. Thread i of them has the result of values[i]. An array has at most `Width` numbers;
///   a thread after the last number has any value.
/// - `exclusive_sum(storage, value)` is the exclusive prefix sum over the block, and the total.
/// - `rank(storage, vote)` is how many lower threads vote, and how many threads do.
/// - `sort(storage, values, count)` sorts numbers in shared or device memory, ascending; `count` is at most
///   sorted_of_a_thread * threads(), and `storage` has sort_bytes(threads()). The result is visible after a `sync`.
/// - `atomic_add`, `atomic_min`, `atomic_max`, `atomic_or` and `atomic_and` work on int, unsigned or 64-bit unsigned,
///   in shared or device memory. They return the value before.
/// - `multiply_16x8x16<codec>(a, b, sum)` adds the product of a warp's fragments of bf16 or f16 to `sum`.
/// - `fence()` is __threadfence: writes of this thread before the fence become visible to other blocks
///   before its later writes.
/// - `load_async(to, from)` begins to copy 16 bytes from device to shared memory; both are aligned to 16. Until it is
///   waited for, anything can be at `to`, and nobody accesses it. `commit_loads()` makes a group of the copies that
///   this thread has begun since the last one. `wait_loads<Latest>()` waits for all its groups but the latest so many,
///   and their copies are visible to this thread then, to others after a barrier. A thread waits for all before it
///   ends.
template <class B>
concept thread_block =
    requires(B& block, int* number, std::uint64_t* word, fragment_of_floats& sum, collective_storage* storage) {
      { block.index() } -> std::same_as<int>;
      { block.blocks() } -> std::same_as<int>;
      { block.thread() } -> std::same_as<int>;
      { block.threads() } -> std::same_as<int>;
      { block.shared() } -> std::same_as<std::byte*>;
      { block.cluster_rank() } -> std::same_as<int>;
      { block.cluster_blocks() } -> std::same_as<int>;
      { block.of_block(0, number) } -> std::same_as<int*>;
      block.sync_cluster();
      block.sync();
      block.sync_warp();
      block.fence();
      { block.ballot(true) } -> std::same_as<unsigned>;
      { block.shuffle(1.0f, 0) } -> std::same_as<float>;
      { block.reduce_warp(1.0f, detail::plus_op{}) } -> std::same_as<float>;
      { block.reduce_warp_batched(sum.of, detail::plus_op{}) } -> std::same_as<float>;
      { block.reduce(storage, 1, detail::plus_op{}) } -> std::same_as<int>;
      { block.exclusive_sum(storage, 1) } -> std::same_as<prefix_sum<int>>;
      { block.rank(storage, true) } -> std::same_as<prefix_sum<int>>;
      block.sort(block.shared(), number, 1);
      block.template multiply_16x8x16<codec::bf16>(fragment_16x16{}, fragment_16x8{}, sum);
      { block.atomic_add(number, 1) } -> std::same_as<int>;
      { block.atomic_min(word, std::uint64_t{1}) } -> std::same_as<std::uint64_t>;
      { block.atomic_max(number, 1) } -> std::same_as<int>;
      { block.atomic_or(number, 1) } -> std::same_as<int>;
      { block.atomic_and(number, 1) } -> std::same_as<int>;
      block.load_async(block.shared(), block.shared());
      block.commit_loads();
      block.template wait_loads<0>();
    };

namespace detail {

/// How many threads a warp has.
inline constexpr int warp_size = 32;

[[nodiscard]] KVPOLICY_HD constexpr int popcount(unsigned word) { return __builtin_popcount(word); }

template <class Block>
[[nodiscard]] KVPOLICY_HD int lane_id(Block& block) {
  return block.thread() % warp_size;
}
template <class Block>
[[nodiscard]] KVPOLICY_HD int warp_id(Block& block) {
  return block.thread() / warp_size;
}

/// Hands out pieces of a block's shared memory, each aligned to 16 bytes. Every thread constructs an arena and makes
/// the same calls, so that all of them get the same pieces.
class shared_arena {
 public:
  template <class Block>
  KVPOLICY_HD explicit shared_arena(Block& block) : next_(block.shared()) {}

  template <class T>
  [[nodiscard]] KVPOLICY_HD T* take(int count) {
    auto* const piece = reinterpret_cast<T*>(next_);
    next_ += bytes_of_piece<T>(count);
    return piece;
  }
  /// The bytes that `take<T>(count)` uses.
  template <class T>
  [[nodiscard]] KVPOLICY_HD static constexpr std::size_t bytes_of_piece(int count) {
    return (static_cast<std::size_t>(count) * sizeof(T) + 15) / 16 * 16;
  }

 private:
  std::byte* next_;
};

/// The bytes of shared memory that collectives of a block use.
[[nodiscard]] KVPOLICY_HD constexpr std::size_t collective_bytes() { return sizeof(collective_storage); }

/// As `last_block`, for the blocks of a group that share a ticket. The barrier orders the writes of the block's threads
/// before thread 0's fence, the fence orders them before its atomic, and in the last block the way back is the same.
template <class Block>
[[nodiscard]] KVPOLICY_HD bool last_of(Block& block, int blocks, int* ticket, int* temp_storage) {
  block.sync();
  if (block.thread() == 0) {
    block.fence();
    *temp_storage = block.atomic_add(ticket, 1);
    if (*temp_storage == blocks - 1) *ticket = 0;
    block.fence();
  }
  block.sync();
  bool const last = *temp_storage == blocks - 1;
  block.sync();
  return last;
}

/// True in the block that reaches this call last; that block sees every write that the others made before it. `ticket`
/// is 0 before and after the launch. `temp_storage` is one int of shared memory. All threads of all blocks call it once
/// in a launch.
template <class Block>
[[nodiscard]] KVPOLICY_HD bool last_block(Block& block, int* ticket, int* temp_storage) {
  return last_of(block, block.blocks(), ticket, temp_storage);
}

/// The shared memory of a kernel whose last block adds up what all have counted.
struct counting_storage {
  collective_storage* collective;
  int* last;  ///< one int, for last_block

  template <class Block>
  KVPOLICY_HD explicit counting_storage(Block& block) {
    shared_arena arena(block);
    collective = arena.take<collective_storage>(1);
    last = arena.take<int>(1);
  }
  [[nodiscard]] static constexpr std::size_t bytes() {
    return collective_bytes() + shared_arena::bytes_of_piece<int>(1);
  }
};

/// Records a packed fault for the executor's `check()`. An earlier fault of another group is not replaced, since this
/// one may only follow from it.
template <class Block>
KVPOLICY_HD void report_fault(Block& block, device_error faults, std::uint64_t found) {
  std::uint64_t const known = block.atomic_min(faults.data, device_error::nothing);  // an atomic read
  bool const other = group_of(static_cast<fault>(known >> 56)) != group_of(static_cast<fault>(found >> 56));
  if (known == device_error::nothing || !other) block.atomic_min(faults.data, found);
}
template <class Block>
KVPOLICY_HD void report_fault(Block& block, device_error faults, fault kind, std::int64_t index, std::int64_t value) {
  report_fault(block, faults, device_error::pack(kind, index, value));
}

/// Calls body(block, i), or body(i) if it takes no block, for every i below `count`, in a grid-stride loop.
template <class Body>
struct for_each_kernel {
  std::int64_t count;
  Body body;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    std::int64_t const step = std::int64_t{block.blocks()} * block.threads();
    for (std::int64_t i = std::int64_t{block.index()} * block.threads() + block.thread(); i < count; i += step) {
      if constexpr (std::invocable<Body const&, std::int64_t>) {
        body(i);
      } else {
        body(block, i);
      }
    }
  }
};

/// Runs a kernel that changes the engine's memory, but does nothing if a fault is recorded.
template <class Kernel>
struct unless_fault {
  device_error faults;
  Kernel kernel;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    if (!faults.raised()) kernel(block);
  }
};

/// Launches a kernel that changes the engine's memory. The kernel does nothing if a fault is recorded.
template <class Executor, class Threads, class Kernel>
void launch_unless_fault(Executor& exec, launch_shape<Threads> const& shape, Kernel const& kernel) {
  exec.launch(shape, unless_fault<Kernel>{exec.faults(), kernel});
}

/// The launch shape for a grid-stride loop over `count` items: at most 32 blocks for each multiprocessor.
template <class Executor>
[[nodiscard]] auto shape_for_each(Executor& exec, std::int64_t count) {
  auto const threads = exec.threads().entry;
  std::int64_t const wanted = (count + threads - 1) / threads;
  std::int64_t const most = std::int64_t{exec.config().processors} * 32;
  return launch_shape{static_cast<int>(wanted < most ? wanted : most), threads, 0};
}

/// Launches body(block, i) or body(i) for every i below `count`, each on one thread. The body must not call
/// collectives.
template <class Executor, class Body>
void launch_each(Executor& exec, std::int64_t count, Body const& body) {
  if (count > 0) exec.launch(shape_for_each(exec, count), for_each_kernel<Body>{count, body});
}

/// As `launch_each`, for a body that changes the engine's memory: it does nothing if a fault is recorded.
template <class Executor, class Body>
void launch_each_unless_fault(Executor& exec, std::int64_t count, Body const& body) {
  if (count > 0) launch_unless_fault(exec, shape_for_each(exec, count), for_each_kernel<Body>{count, body});
}

/// A body of for_each_kernel that may record faults.
template <class Check>
struct check_body {
  device_error faults;
  Check check;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block, std::int64_t i) const {
    check(block, faults, i);
  }
};

/// Launches check(block, faults, i) for every i below `count`; it records a fault for each error.
template <class Executor, class Check>
void launch_check(Executor& exec, std::int64_t count, Check const& check) {
  launch_each(exec, count, check_body<Check>{exec.faults(), check});
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
