// What a kernel can ask of the block that runs it, and what follows from that: sums, scans, elections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/config.hpp>
#include <kvpolicy/ops/cuda/backend.hpp>

namespace KVPOLICY_NAMESPACE {

/// A warp's part of a matrix of 16-bit numbers, two in a word, the lower bits first. With g = lane / 4 and t = lane %
/// 4, as PTX lays out the fragments of mma.m16n8k16: a 16 x 16 matrix gives each thread the columns 2 t and 2 t + 1 of
/// rows g and g + 8, then columns 2 t + 8 and 2 t + 9 of both;
struct fragment_16x16 {
  std::uint32_t of[4];
};
/// a 16 x 8 matrix the rows 2 t and 2 t + 1 of column g, then rows 2 t + 8 and 2 t + 9;
struct fragment_16x8 {
  std::uint32_t of[2];
};
/// and 16 x 8 floats the columns 2 t and 2 t + 1 of row g, then of row g + 8.
struct fragment_of_floats {
  float of[4];
};

/// A block of threads, as a kernel sees it. Every thread of the block runs the kernel; what is said to be collective
/// must be reached by all threads of the block (`sync`) or of the warp (`sync_warp`, `ballot`, `shuffle`), each of
/// which orders the memory that they share.
///
/// - `index()`, `blocks()`: which block of how many. `thread()`, `threads()`: which thread of how many.
/// - `shared()`: the block's shared memory, aligned to 16 bytes.
/// - `add`, `lower`, `raise`, `unite`, `intersect`: atomic a += b, a = min, a = max, a |= b, a &= b of int, unsigned or
///   64-bit unsigned, in shared or device memory; they return what was there.
/// - `multiply_16x8x16<codec>(a, b, sum)`: sum += a b of a warp's fragments of bf16 or f16; collective of the warp.
/// - `fence()`: what this thread wrote before it is seen by other blocks before what it writes after it.
template <class B>
concept thread_block = requires(B& block, int* number, std::uint64_t* word, fragment_of_floats& sum) {
  { block.index() } -> std::same_as<int>;
  { block.blocks() } -> std::same_as<int>;
  { block.thread() } -> std::same_as<int>;
  { block.threads() } -> std::same_as<int>;
  { block.shared() } -> std::same_as<std::byte*>;
  block.sync();
  block.sync_warp();
  block.fence();
  { block.ballot(true) } -> std::same_as<unsigned>;
  { block.shuffle(1.0f, 0) } -> std::same_as<float>;
  block.template multiply_16x8x16<codec::bf16>(fragment_16x16{}, fragment_16x8{}, sum);
  { block.atomic_add(number, 1) } -> std::same_as<int>;
  { block.atomic_min(word, std::uint64_t{1}) } -> std::same_as<std::uint64_t>;
  { block.atomic_max(number, 1) } -> std::same_as<int>;
  { block.atomic_or(number, 1) } -> std::same_as<int>;
  { block.atomic_and(number, 1) } -> std::same_as<int>;
};

namespace detail {

/// Threads of a warp.
inline constexpr int warp_size = 32;

[[nodiscard]] KVPOLICY_HD constexpr int bits_in(unsigned word) { return __builtin_popcount(word); }

template <class Block>
[[nodiscard]] KVPOLICY_HD int lane_id(Block& block) {
  return block.thread() % warp_size;
}
template <class Block>
[[nodiscard]] KVPOLICY_HD int warp_id(Block& block) {
  return block.thread() / warp_size;
}

/// Hands out pieces of a block's shared memory, each aligned to 16 bytes. Every thread makes its own, alike.
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
  /// Bytes that `take<T>(count)` uses up.
  template <class T>
  [[nodiscard]] KVPOLICY_HD static constexpr std::size_t bytes_of_piece(int count) {
    return (static_cast<std::size_t>(count) * sizeof(T) + 15) / 16 * 16;
  }

 private:
  std::byte* next_;
};

/// Combines the values of a warp's threads; all of them have the result. The order is fixed.
template <class Block, class T, class Combine>
[[nodiscard]] KVPOLICY_HD T warp_reduce(Block& block, T value, Combine const& combine) {
  for (int step = warp_size / 2; step > 0; step /= 2) {
    T const other = block.shuffle(value, lane_id(block) ^ step);
    value = lane_id(block) & step ? combine(other, value) : combine(value, other);
  }
  return value;
}

/// The sum of the values of lower threads of the warp.
template <class Block, class T>
[[nodiscard]] KVPOLICY_HD T warp_sum_before(Block& block, T value) {
  T sum = value;
  for (int step = 1; step < warp_size; step *= 2) {
    T const other = block.shuffle(sum, lane_id(block) - step < 0 ? 0 : lane_id(block) - step);
    if (lane_id(block) >= step) sum += other;
  }
  return sum - value;
}

/// Bytes of shared memory that the collectives below use.
template <class T>
[[nodiscard]] KVPOLICY_HD constexpr std::size_t collective_bytes() {
  return shared_arena::bytes_of_piece<T>(warp_size + 1);
}

/// Combines the values of a block's threads; all of them have the result. `temp_storage`: warp_size + 1 values of
/// shared memory. The order is fixed: the result has the same bits every time, and other bits with another number of
/// threads.
template <class Block, class T, class Combine>
[[nodiscard]] KVPOLICY_HD T block_reduce(Block& block, T value, T* temp_storage, Combine const& combine) {
  int const warps = block.threads() / warp_size;
  value = warp_reduce(block, value, combine);
  block.sync();
  if (lane_id(block) == 0) temp_storage[warp_id(block)] = value;
  block.sync();
  T all = temp_storage[0];
  for (int i = 1; i < warps; ++i) all = combine(all, temp_storage[i]);
  return all;
}

struct add_up {
  template <class T>
  KVPOLICY_HD constexpr T operator()(T a, T b) const {
    return a + b;
  }
};
struct take_higher {
  template <class T>
  KVPOLICY_HD constexpr T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct take_lower {
  template <class T>
  KVPOLICY_HD constexpr T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

template <class T>
struct sum_before {
  T before;  ///< of lower threads
  T all;
};

/// The sum of the values of lower threads of the block, and of all. `temp_storage`: warp_size + 1 values of shared
/// memory.
template <class Block, class T>
[[nodiscard]] KVPOLICY_HD sum_before<T> block_sum_before(Block& block, T value, T* temp_storage) {
  int const warps = block.threads() / warp_size;
  T const before = warp_sum_before(block, value);
  block.sync();
  if (lane_id(block) == warp_size - 1) temp_storage[warp_id(block)] = before + value;
  block.sync();
  T lower{};
  T all{};
  for (int i = 0; i < warps; ++i) {
    if (i < warp_id(block)) lower += temp_storage[i];
    all += temp_storage[i];
  }
  return {static_cast<T>(lower + before), all};
}

/// True in the block that comes here last of all: it sees what the others wrote before. `ticket` is 0 before and
/// afterwards; `temp_storage`: an int of shared memory. Collective, once a launch.
template <class Block>
[[nodiscard]] KVPOLICY_HD bool last_block(Block& block, int* ticket, int* temp_storage) {
  block.fence();
  block.sync();
  if (block.thread() == 0) {
    *temp_storage = block.atomic_add(ticket, 1);
    if (*temp_storage == block.blocks() - 1) *ticket = 0;
  }
  block.sync();
  bool const last = *temp_storage == block.blocks() - 1;
  block.fence();
  block.sync();
  return last;
}

/// Tells of a fault, unless an earlier launch has told of another kind: that is the cause, and this may follow from it.
template <class Block>
KVPOLICY_HD void report_fault(Block& block, device_error faults, fault kind, std::int64_t index, std::int64_t value) {
  std::uint64_t const known = block.atomic_min(faults.data, device_error::nothing);  // reads, as other blocks see it
  if (known != device_error::nothing && group_of(static_cast<fault>(known >> 56)) != group_of(kind)) return;
  block.atomic_min(faults.data, device_error::pack(kind, index, value));
}

/// Launches a kernel with a thread for each of `count` things, which asks `kernel(block, i)` for i below it.
template <class Body>
struct for_each_kernel {
  std::int64_t count;
  Body body;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    std::int64_t const step = std::int64_t{block.blocks()} * block.threads();
    for (std::int64_t i = std::int64_t{block.index()} * block.threads() + block.thread(); i < count; i += step) {
      body(block, i);
    }
  }
};

/// A kernel that changes the engine's memory: it does nothing once the device has found a fault.
template <class Kernel>
struct unless_fault {
  device_error faults;
  Kernel kernel;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    if (!faults.raised()) kernel(block);
  }
};

/// Launches a kernel that changes the engine's memory.
template <class Executor, class Kernel>
void launch_change(Executor& exec, launch_shape const& shape, Kernel const& kernel) {
  exec.launch(shape, unless_fault<Kernel>{exec.faults(), kernel});
}

/// Threads for each of `count` things, as many as are worth it.
template <class Executor>
[[nodiscard]] launch_shape shape_for_each(Executor& exec, std::int64_t count) {
  int const threads = exec.config().entry_threads;
  std::int64_t const wanted = (count + threads - 1) / threads;
  std::int64_t const most = std::int64_t{exec.config().processors} * 32;
  return {static_cast<int>(wanted < most ? wanted : most), threads, 0};
}

/// body(block, i) for every i below `count`, a thread each. Not collective: the body asks nothing of its neighbours.
template <class Executor, class Body>
void launch_each(Executor& exec, std::int64_t count, Body const& body) {
  if (count > 0) exec.launch(shape_for_each(exec, count), for_each_kernel<Body>{count, body});
}

/// launch_each of what changes the engine's memory.
template <class Executor, class Body>
void launch_each_change(Executor& exec, std::int64_t count, Body const& body) {
  if (count > 0) launch_change(exec, shape_for_each(exec, count), for_each_kernel<Body>{count, body});
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
