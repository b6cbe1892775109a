// SPDX-License-Identifier: Apache-2.0
// A device on the host: runs the kernels of ops/cuda cluster by cluster, each thread of a cluster a fiber of its own.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/cuda/run/faults.hpp>
#include <memory>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/data_races.hpp"
#include "support/launch_numbers.hpp"
#include "support/sanitized.hpp"
#if defined(KVPOLICY_TEST_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvpolicy_test {

namespace kv = kvpolicy;

struct emulated {
  static constexpr bool runs_kernels = true;
};

/// One cluster at a time: a block, where the launch has no clusters. Threads take turns in an order that changes from
/// round to round, and some warps and some blocks of a cluster fall behind for a while, so that a kernel which forgets
/// a barrier is seen to depend on it. What follows ends the program: a barrier which not every thread reaches, a
/// collective whose storage an earlier one has used since the last barrier, a pointer to another block's memory before
/// the first barrier of the cluster, a write where an asynchronous copy is under way, and a thread that ends before its
/// copies. What is read there is not what is copied. The memory of a block that has ended is nobody's. The emulator's
/// own memory is made once, so that a test can tell whether a verb allocates.
///
/// Under the thread sanitizer each thread of each block is one of the sanitizer's. Only `sync`, `sync_warp`,
/// `sync_cluster`, fences and the ends of launches order what they do, so it reports races in shared and in device
/// memory, whichever thread was first. Clusters that follow one another in the same place are ordered, too.
class emulated_block {
 public:
  static constexpr int most_cluster = 8;
  static constexpr std::size_t most_shared = 227 * 1024;

  emulated_block()
      : parity_(most_fibers),
        slots_(2 * most_fibers * slot_bytes),
        epoch_(most_fibers),
        cluster_barriers_(most_fibers),
        warp_barriers_(most_fibers),
        collectives_(most_fibers),
        copies_(most_fibers),
        threads_(most_fibers) {
    clusters_.reserve(1 << 16);
    for (place& each : places_) {
      for (block_state& one : each.blocks) {
        one.uses.reserve(1 << 13);
        forbid(one.shared.get(), most_shared);
      }
      each.blocks[0].uses.reserve(1 << 16);
      while (each.fibers.size() < 128) each.fibers.emplace_back();
    }
  }
  ~emulated_block() {
    for (place& each : places_) {
      for (block_state& one : each.blocks) allow(one.shared.get(), most_shared);
    }
  }
  emulated_block(emulated_block const&) = delete;
  emulated_block& operator=(emulated_block const&) = delete;

  [[nodiscard]] int index() const { return first_ + cluster_rank(); }
  [[nodiscard]] int blocks() const { return shape_.blocks; }
  [[nodiscard]] int thread() const { return current_ % shape_.threads; }
  [[nodiscard]] int threads() const { return shape_.threads; }
  [[nodiscard]] std::byte* shared() { return this_block().shared.get(); }
  [[nodiscard]] int cluster_rank() const { return current_ / shape_.threads; }
  [[nodiscard]] int cluster_blocks() const { return shape_.cluster; }

  void sync() {
    unwatched const own;
    auto const at = static_cast<std::size_t>(current_);
    int const number = epoch_[at]++ - cluster_barriers_[at];
    wait(state::at_block, place_->orders.of_block[cluster_rank()][number % 2]);
  }
  void sync_cluster() {
    unwatched const own;
    auto const at = static_cast<std::size_t>(current_);
    ++epoch_[at];
    wait(state::at_cluster, place_->orders.of_cluster[cluster_barriers_[at]++ % 2]);
  }
  template <class T>
  [[nodiscard]] T* of_block(int rank, T* mine) {
    auto const at = reinterpret_cast<std::uintptr_t>(mine) - reinterpret_cast<std::uintptr_t>(shared());
    if (rank < 0 || rank >= shape_.cluster) fail("a cluster has no block of this rank");
    if (at >= shape_.shared) fail("a pointer to a block's shared memory is none");
    if (rank != cluster_rank() && cluster_barriers_[static_cast<std::size_t>(current_)] == 0) {
      fail("a block's memory is asked for before the first barrier of the cluster");
    }
    return reinterpret_cast<T*>(place_->blocks[static_cast<std::size_t>(rank)].shared.get() + at);
  }
  void sync_warp() {
    unwatched const own;
    int const number = warp_barriers_[static_cast<std::size_t>(current_)]++;
    wait(state::at_warp, place_->orders.of_warp[current_ / kv::detail::warp_size][number % 2]);
  }
  void fence() {
    fences_.release();
    fences_.acquire();
  }

  [[nodiscard]] unsigned ballot(bool vote) {
    auto* const votes = exchange(vote ? 1u : 0u);
    unsigned all = 0;
    for (int i = 0; i < kv::detail::warp_size; ++i) {
      unsigned one = 0;
      std::memcpy(&one, votes + static_cast<std::size_t>(i) * slot_bytes, sizeof one);
      all |= one << i;
    }
    return all;
  }

  template <class T>
  [[nodiscard]] T shuffle(T value, int from) {
    auto* const values = exchange(value);
    T got{};
    std::memcpy(&got, values + static_cast<std::size_t>(from & (kv::detail::warp_size - 1)) * slot_bytes, sizeof got);
    return got;
  }

  // --- Collectives. Values are combined in the order in which CUB's warps do. ----------------------------------------

  template <int Width = kv::detail::warp_size, class T, class Combine>
  [[nodiscard]] T reduce_warp(T value, Combine const& combine) {
    auto* const values = exchange(value);
    int const first = current_ % kv::detail::warp_size / Width * Width;
    return combined<T, Width>(values + static_cast<std::size_t>(first) * slot_bytes, slot_bytes, combine);
  }

  template <int Width = kv::detail::warp_size, class T, std::size_t Count, class Combine>
  [[nodiscard]] T reduce_warp_batched(T const (&values)[Count], Combine const& combine) {
    static_assert(Count <= static_cast<std::size_t>(Width));
    T mine;
    std::memset(&mine, 0xEE, sizeof mine);
    for (std::size_t i = 0; i < Count; ++i) {
      T const all = reduce_warp<Width>(values[i], combine);
      if (static_cast<std::size_t>(current_ % Width) == i) mine = all;
    }
    return mine;
  }

  template <class T, class Combine>
  [[nodiscard]] T reduce(kv::collective_storage* storage, T value, Combine const& combine) {
    auto const* const values = gather(storage, sizeof *storage, value);
    T all = combined<T, kv::detail::warp_size>(values, value_bytes, combine);
    for (int t = kv::detail::warp_size; t < threads(); t += kv::detail::warp_size) {
      auto const* const of_warp = values + static_cast<std::size_t>(t) * value_bytes;
      all = combine(all, combined<T, kv::detail::warp_size>(of_warp, value_bytes, combine));
    }
    return all;
  }

  template <class T>
  [[nodiscard]] kv::prefix_sum<T> exclusive_sum(kv::collective_storage* storage, T value) {
    auto const* const values = gather(storage, sizeof *storage, value);
    kv::prefix_sum<T> sum{};
    for (int t = 0; t < threads(); ++t) {
      if (t == thread()) sum.before = sum.all;
      sum.all += value_at<T>(values, value_bytes, t);
    }
    return sum;
  }

  [[nodiscard]] kv::prefix_sum<int> rank(kv::collective_storage* storage, bool vote) {
    return exclusive_sum(storage, vote ? 1 : 0);
  }

  void sort(std::byte* storage, int* values, int count) {
    if (count > kv::sorted_of_a_thread * threads()) fail("a block does not sort so many numbers");
    touch_share(values, count);
    static_cast<void>(gather(storage, kv::sort_bytes(threads()), 0));
    {
      unwatched const own;
      int& sorting = this_block().sorting;
      if (sorting++ == 0) std::sort(values, values + count);
      if (sorting == threads()) sorting = 0;
    }
    touch_share(values, count);
  }

  /// sum += a b, each product rounded when it is added, from what the warp's other threads hold.
  template <kv::codec Element>
  void multiply_16x8x16(kv::fragment_16x16 const& a, kv::fragment_16x8 const& b, kv::fragment_of_floats& sum) {
    int const lane = current_ % kv::detail::warp_size;
    float row[2][16], column[2][16];
    auto const* slots = exchange(a);
    for (int i = 0; i < 2 * 16; ++i) {
      int const k = i % 16;
      row[i / 16][k] = number_at<Element>(slots, lane / 4 * 4 + k % 8 / 2, i / 16 + k / 8 * 2, k % 2);
    }
    slots = exchange(b);
    for (int i = 0; i < 2 * 16; ++i) {
      int const k = i % 16;
      column[i / 16][k] = number_at<Element>(slots, (lane % 4 * 2 + i / 16) * 4 + k % 8 / 2, k / 8, k % 2);
    }
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 16; ++k) sum.of[i] += row[i / 2][k] * column[i % 2][k];
    }
  }

  // --- Asynchronous copies. They may arrive at any time before they are waited for; here it is the latest.
  // ------------

  void load_async(std::byte* to, std::byte const* from) {
    if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % copy_bytes != 0) {
      fail("an asynchronous copy is not aligned to 16 bytes");
    }
    std::memset(to, unwritten, copy_bytes);
    forbid(to, copy_bytes);
    unwatched const own;
    copies_of_thread& mine = copies_[static_cast<std::size_t>(current_)];
    if (mine.count == copies_of_thread::most) fail("a thread has more asynchronous copies under way than 16");
    mine.of[static_cast<std::size_t>(mine.count++)] = {to, from, 0};
  }
  void commit_loads() {
    unwatched const own;
    copies_of_thread& mine = copies_[static_cast<std::size_t>(current_)];
    for (int i = 0; i < mine.count; ++i) ++mine.of[static_cast<std::size_t>(i)].groups;
  }
  template <int Latest>
  void wait_loads() {
    copies_of_thread& mine = copies_[static_cast<std::size_t>(current_)];
    int done = 0;
    while (done < mine.count && mine.of[static_cast<std::size_t>(done)].groups > Latest) {
      copy_under_way const& one = mine.of[static_cast<std::size_t>(done++)];
      allow(one.to, copy_bytes);
      for (std::size_t i = 0; i < copy_bytes; ++i) {
        if (one.to[i] != std::byte{unwritten}) fail("something is written where an asynchronous copy is under way");
      }
      std::memcpy(one.to, one.from, copy_bytes);
    }
    unwatched const own;
    std::copy(mine.of.begin() + done, mine.of.begin() + mine.count, mine.of.begin());
    mine.count -= done;
  }

  template <class T>
  T atomic_add(T* to, T value) {
    return change(to, [&](T old) { return static_cast<T>(old + value); });
  }
  template <class T>
  T atomic_min(T* to, T value) {
    return change(to, [&](T old) { return value < old ? value : old; });
  }
  template <class T>
  T atomic_max(T* to, T value) {
    return change(to, [&](T old) { return old < value ? value : old; });
  }
  template <class T>
  T atomic_or(T* to, T value) {
    return change(to, [&](T old) { return static_cast<T>(old | value); });
  }
  template <class T>
  T atomic_and(T* to, T value) {
    return change(to, [&](T old) { return static_cast<T>(old & value); });
  }

  /// `random`: a state that says in which order blocks and threads run.
  template <class Kernel>
  void run(kv::launch_shape<int> const& shape, Kernel const& kernel, std::uint64_t& random) {
    auto const threads = static_cast<std::size_t>(shape.threads);
    if (shape.threads <= 0 || threads % kv::detail::warp_size != 0 || threads > most_threads) {
      fail("the number of threads is no multiple of 32, or more than 1024");
    }
    unwatched const own;
    scheduler_thread_.note_current();
    shape_ = shape;
    random_ = &random;
    kernel_ = &kernel;
    call_ = [](void const* what, emulated_block& block) { (*static_cast<Kernel const*>(what))(block); };
    for (place& each : places_) {
      while (each.fibers.size() < static_cast<std::size_t>(fibers())) each.fibers.emplace_back();
    }
    std::fill_n(parity_.begin(), fibers(), 0);
    clusters_.resize(static_cast<std::size_t>(shape.blocks / shape.cluster));
    std::iota(clusters_.begin(), clusters_.end(), 0);
    shuffle_order(clusters_);
    barriers_ = 0;
    begins_.release();
    for (std::size_t i = 0; i < clusters_.size(); ++i) {
      place_ = &places_[i % places_.size()];
      place_->turn ^= 1;
      run_cluster(clusters_[i] * shape.cluster);
    }
    ends_.acquire();
  }
  /// The most barriers that a thread has passed in the last launch, those of clusters included and those inside of
  /// collectives not.
  [[nodiscard]] int barriers() const { return barriers_; }

 private:
  enum class state { ready, at_block, at_collective, at_warp, at_cluster, done };
  static constexpr std::size_t stack_bytes = 256 * 1024;
  static constexpr std::size_t slot_bytes = 16;
  static constexpr std::size_t value_bytes = 32;
  static constexpr std::size_t most_threads = 1024;
  static constexpr std::size_t most_fibers = most_threads * most_cluster;
  static constexpr unsigned all_warps = ~0u;

  /// Shared memory beyond what a launch asked for is nobody's.
  static void forbid([[maybe_unused]] std::byte* from, [[maybe_unused]] std::size_t bytes) {
#if defined(KVPOLICY_TEST_ASAN)
    __asan_poison_memory_region(from, bytes);
#endif
  }
  static void allow([[maybe_unused]] std::byte* from, [[maybe_unused]] std::size_t bytes) {
#if defined(KVPOLICY_TEST_ASAN)
    __asan_unpoison_memory_region(from, bytes);
#endif
  }

  struct fiber {
    std::unique_ptr<std::byte[]> stack{new std::byte[stack_bytes]};
    watched_fiber thread;
    boost::context::detail::fcontext_t context = nullptr;
    state where = state::done;
    void* fake_stack = nullptr;
  };

  struct copy_under_way {
    std::byte* to;
    std::byte const* from;
    int groups;  ///< how many groups of the thread have ended since it began: 0 until its own has
  };
  struct copies_of_thread {
    static constexpr int most = 16;
    std::array<copy_under_way, most> of;
    int count = 0;
  };
  static constexpr std::size_t copy_bytes = 16;
  static constexpr int unwritten = 0xEB;  ///< what is where a copy is under way

  /// The storage of a collective, and how many barriers came before.
  struct storage_use {
    std::byte* begin;
    std::byte* end;
    int epoch;
    friend bool operator==(storage_use const&, storage_use const&) = default;
  };

  /// What the barriers of a cluster order; of each kind two, which take turns.
  struct ordering_points {
    ordering_point of_cluster[2];
    ordering_point of_block[most_cluster][2];
    ordering_point of_warp[most_fibers / kv::detail::warp_size][2];
  };
  /// A block of the cluster.
  struct block_state {
    std::unique_ptr<std::byte[]> shared{new std::byte[most_shared]};
    std::vector<std::byte> values = std::vector<std::byte>(2 * most_threads * value_bytes);
    std::vector<storage_use> uses;
    int sorting = 0;      ///< threads that have left the sort
    unsigned behind = 0;  ///< a bit for each warp that waits, while the others go on as far as they can
    bool ended = false;
  };

  /// Where a cluster runs. Clusters of one place follow one another; the sanitizer finds races with those of others.
  struct place {
    std::array<block_state, most_cluster> blocks;
    std::deque<fiber> fibers;  ///< a fiber knows where it is
    ordering_points orders;
    ordering_point turns[2];  ///< the ends of a cluster's threads, and of those of the one before
    int turn = 0;
  };

  [[noreturn]] static void fail(char const* why) {
    std::fprintf(stderr, "emulated device: %s\n", why);
    std::abort();
  }

  [[nodiscard]] int fibers() const { return shape_.threads * shape_.cluster; }
  [[nodiscard]] block_state& this_block() { return place_->blocks[static_cast<std::size_t>(cluster_rank())]; }

  /// The cluster whose first block has this index.
  void run_cluster(int first) {
    first_ = first;
    begin_blocks();
    begin_threads();
    for (int round = 0;; ++round) {
      if (round % 4 == 0) shuffle_order(threads_);
      bool ran = false;
      for (int const t : threads_) {
        if (place_->fibers[static_cast<std::size_t>(t)].where != state::ready || is_behind(t)) continue;
        resume(t);
        ran = true;
      }
      bool const released = release();
      if (end_blocks()) break;
      if (ran || released) continue;
      if (!catch_up()) fail("a barrier or a collective is not reached by all threads");
    }
    barriers_ = std::max(barriers_, *std::max_element(epoch_.begin(), epoch_.begin() + fibers()));
  }

  void begin_blocks() {
    for (int rank = 0; rank < shape_.cluster; ++rank) {
      block_state& one = place_->blocks[static_cast<std::size_t>(rank)];
      allow(one.shared.get(), shape_.shared);
      std::memset(one.shared.get(), 0xCD, shape_.shared);  // shared memory begins as anything
      one.uses.clear();
      one.ended = false;
      fall_behind(rank);
    }
  }

  void begin_threads() {
    std::fill_n(epoch_.begin(), fibers(), 0);
    std::fill_n(cluster_barriers_.begin(), fibers(), 0);
    std::fill_n(warp_barriers_.begin(), fibers(), 0);
    std::fill_n(collectives_.begin(), fibers(), 0);
    for (int t = 0; t < fibers(); ++t) {
      fiber& one = place_->fibers[static_cast<std::size_t>(t)];
      if (one.context == nullptr) {
        one.thread.create();
        one.context = boost::context::detail::make_fcontext(one.stack.get() + stack_bytes, stack_bytes, &enter);
      }
      one.where = state::ready;
    }
    threads_.resize(static_cast<std::size_t>(fibers()));
    std::iota(threads_.begin(), threads_.end(), 0);
  }

  /// Some warps of a block wait, and now and then a whole block of a cluster does.
  void fall_behind(int rank) {
    unsigned& behind = place_->blocks[static_cast<std::size_t>(rank)].behind;
    behind = draw() & draw();
    if (shape_.cluster > 1 && draw() % 4 == 0) behind = all_warps;
  }
  [[nodiscard]] bool is_behind(int t) const {
    unsigned const behind = place_->blocks[static_cast<std::size_t>(t / shape_.threads)].behind;
    return (behind >> (t % shape_.threads / kv::detail::warp_size) & 1u) != 0;
  }
  /// Nobody waits any more. False if nobody did.
  bool catch_up() {
    bool any = false;
    for (block_state& one : place_->blocks) any = std::exchange(one.behind, 0u) != 0 || any;
    return any;
  }

  /// True if all blocks have ended. Memory of a block that has ended is nobody's, although others may still run.
  bool end_blocks() {
    bool all = true;
    for (int rank = 0; rank < shape_.cluster; ++rank) {
      block_state& one = place_->blocks[static_cast<std::size_t>(rank)];
      if (!one.ended && all_at(rank * shape_.threads, (rank + 1) * shape_.threads, state::done)) {
        one.ended = true;
        one.behind = 0;
        std::memset(one.shared.get(), 0xDF, shape_.shared);
        forbid(one.shared.get(), shape_.shared);
      }
      all = all && one.ended;
    }
    return all;
  }

  bool all_at(int begin, int end, state where) const {
    for (int t = begin; t < end; ++t) {
      if (place_->fibers[static_cast<std::size_t>(t)].where != where) return false;
    }
    return true;
  }

  bool release() {
    bool any = false;
    auto const go_on = [&](int begin, int end, state where) {
      if (!all_at(begin, end, where)) return false;
      for (int t = begin; t < end; ++t) place_->fibers[static_cast<std::size_t>(t)].where = state::ready;
      any = true;
      return true;
    };
    bool const cluster = go_on(0, fibers(), state::at_cluster);
    for (int rank = 0; rank < shape_.cluster; ++rank) {
      int const begin = rank * shape_.threads;
      int const end = begin + shape_.threads;
      bool const block = go_on(begin, end, state::at_block);
      bool const collective = go_on(begin, end, state::at_collective);
      if (cluster || block || collective) fall_behind(rank);
    }
    for (int t = 0; t < fibers(); t += kv::detail::warp_size) go_on(t, t + kv::detail::warp_size, state::at_warp);
    return any;
  }

  template <class T>
  std::byte* exchange(T const& value) {
    static_assert(sizeof(T) <= slot_bytes);
    unwatched const own;
    int& parity = parity_[static_cast<std::size_t>(current_)];
    int const first = current_ / kv::detail::warp_size * kv::detail::warp_size;
    auto* const slots = slots_.data() + static_cast<std::size_t>(parity * fibers() + first) * slot_bytes;
    parity ^= 1;
    std::memcpy(slots + static_cast<std::size_t>(current_ - first) * slot_bytes, &value, sizeof value);
    wait(state::at_warp);
    return slots;
  }

  /// The values that all threads give to a collective. Its storage holds anything before and after.
  template <class T>
  std::byte const* gather(void* storage, std::size_t bytes, T const& value) {
    static_assert(sizeof(T) <= value_bytes && std::is_trivially_copyable_v<T>);
    auto const parity = static_cast<std::size_t>(collectives_[static_cast<std::size_t>(current_)] % 2);
    auto* const values = this_block().values.data() + parity * most_threads * value_bytes;
    auto* const words = static_cast<int*>(storage);
    auto const count = static_cast<int>(bytes / sizeof(int));
    touch_share(words, count);
    {
      unwatched const own;
      use_storage(static_cast<std::byte*>(storage), bytes);
      std::memset(storage, 0xEE, bytes);
      std::memcpy(values + static_cast<std::size_t>(thread()) * value_bytes, &value, sizeof value);
      wait(state::at_collective);
      std::memset(storage, 0xDD, bytes);
    }
    touch_share(words, count);
    return values;
  }

  template <class T, class F>
  static T change(T* to, F const& by) {
    std::atomic_ref<T> const at(*to);
    T old = at.load(std::memory_order_relaxed);
    while (!at.compare_exchange_weak(old, by(old), std::memory_order_relaxed)) {
    }
    return old;
  }

  /// Reads and writes a share of the numbers that a collective uses, for the thread sanitizer. It is a neighbour's, as
  /// any thread may use any of them.
  void touch_share(int volatile* numbers, int count) {
    if (!under_thread_sanitizer) return;
    for (int i = (thread() + 1) % threads(); i < count; i += threads()) numbers[i] = numbers[i];
  }

  /// Ends the program if a collective has used this storage since the last barrier, or if threads are in different
  /// ones.
  void use_storage(std::byte* storage, std::size_t bytes) {
    auto const at = static_cast<std::size_t>(current_);
    storage_use const mine{storage, storage + bytes, epoch_[at]};
    auto const number = static_cast<std::size_t>(collectives_[at]++);
    std::vector<storage_use>& uses = this_block().uses;
    if (number < uses.size()) {
      if (!(uses[number] == mine)) fail("the threads of a block call different collectives");
      return;
    }
    for (auto before = uses.rbegin(); before != uses.rend() && before->epoch == mine.epoch; ++before) {
      if (mine.begin < before->end && before->begin < mine.end) {
        fail("the storage of a collective is used again before a barrier");
      }
    }
    uses.push_back(mine);
  }

  template <class T>
  static T value_at(std::byte const* values, std::size_t stride, int thread) {
    alignas(T) std::byte raw[sizeof(T)];
    std::memcpy(raw, values + static_cast<std::size_t>(thread) * stride, sizeof(T));
    return *reinterpret_cast<T const*>(raw);
  }

  /// The values of neighbouring threads: those of pairs, then those of fours, and so on.
  template <class T, int Width, class Combine>
  static T combined(std::byte const* values, std::size_t stride, Combine const& combine) {
    if constexpr (Width == 1) {
      return value_at<T>(values, stride, 0);
    } else {
      return combine(combined<T, Width / 2>(values, stride, combine),
                     combined<T, Width / 2>(values + Width / 2 * stride, stride, combine));
    }
  }

  /// One half of a word that a thread of the warp gave, as a number.
  template <kv::codec Element>
  static float number_at(std::byte const* slots, int lane, int word, int half) {
    std::uint16_t raw = 0;
    auto const at = static_cast<std::size_t>(lane) * slot_bytes + static_cast<std::size_t>(word * 4 + half * 2);
    std::memcpy(&raw, slots + at, sizeof raw);
    return Element == kv::codec::bf16 ? kv::from_bf16(raw) : kv::from_f16(raw);
  }

  unsigned draw() {
    *random_ = *random_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<unsigned>(*random_ >> 32);
  }
  void shuffle_order(std::vector<int>& order) {
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[(draw() >> 1) % i]);
  }

  // --- Fibers --------------------------------------------------------------------------------------------------------

  static void enter(boost::context::detail::transfer_t from) {
    auto* const block = static_cast<emulated_block*>(from.data);
    block->arrived(nullptr, from.fctx);
    for (;;) {  // one thread of a kernel after another
      block->begins_.acquire();
      block->place_->turns[block->place_->turn].acquire();
      block->call_kernel();
      block->place_->turns[block->place_->turn ^ 1].release();
      block->ends_.release();
      block->check_copies();
      block->leave(state::done);
    }
  }

  void call_kernel() {
    if (process_.is_this()) return call_(kernel_, *this);
    unwatched const own;
    call_(kernel_, *this);
  }
  void check_copies() {
    unwatched const own;
    if (copies_[static_cast<std::size_t>(current_)].count > 0) fail("a thread ends before its asynchronous copies");
  }
  /// Notes where the current fiber waits.
  fiber& note(state where) {
    unwatched const own;
    fiber& one = place_->fibers[static_cast<std::size_t>(current_)];
    one.where = where;
    return one;
  }

  void resume(int t) {
    current_ = t;
    fiber& one = place_->fibers[static_cast<std::size_t>(t)];
    one.thread.go_on();
#if defined(KVPOLICY_TEST_ASAN)
    void* mine = nullptr;
    __sanitizer_start_switch_fiber(&mine, one.stack.get(), stack_bytes);
#endif
    auto const back = boost::context::detail::jump_fcontext(one.context, this);
#if defined(KVPOLICY_TEST_ASAN)
    __sanitizer_finish_switch_fiber(mine, nullptr, nullptr);
#endif
    one.context = back.fctx;
  }

  void arrived([[maybe_unused]] void* fake_stack, boost::context::detail::fcontext_t scheduler) {
    unwatched const own;
#if defined(KVPOLICY_TEST_ASAN)
    __sanitizer_finish_switch_fiber(fake_stack, &main_stack_, &main_bytes_);
#endif
    scheduler_ = scheduler;
  }

  void leave(state where) {
    fiber& one = note(where);
    scheduler_thread_.go_on();
#if defined(KVPOLICY_TEST_ASAN)
    __sanitizer_start_switch_fiber(&one.fake_stack, main_stack_, main_bytes_);
#endif
    auto const back = boost::context::detail::jump_fcontext(scheduler_, nullptr);
    arrived(one.fake_stack, back.fctx);
  }

  void wait(state where) { leave(where); }
  void wait(state where, ordering_point& memory) {
    memory.release();
    leave(where);
    memory.acquire();
  }

  kv::launch_shape<int> shape_{};
  int first_ = 0;    ///< the index of the cluster's first block
  int current_ = 0;  ///< the fiber: the threads of the cluster's blocks, one block after another
  std::uint64_t* random_ = nullptr;
  void const* kernel_ = nullptr;
  void (*call_)(void const*, emulated_block&) = nullptr;
  std::array<place, under_thread_sanitizer ? 3 : 1> places_;  ///< clusters take turns
  place* place_ = &places_[0];
  std::vector<int> parity_;
  std::vector<std::byte> slots_;
  std::vector<int> epoch_;             ///< barriers that a thread has passed
  std::vector<int> cluster_barriers_;  ///< those of them that were the cluster's
  std::vector<int> warp_barriers_;
  int barriers_ = 0;
  ordering_point begins_, fences_, ends_;  ///< of a launch, and all fences
  watched_fiber scheduler_thread_;
  watched_process process_;
  std::vector<int> collectives_;  ///< collectives that a thread has begun
  std::vector<copies_of_thread> copies_;
  std::vector<int> clusters_, threads_;
  boost::context::detail::fcontext_t scheduler_ = nullptr;
  [[maybe_unused]] void const* main_stack_ = nullptr;
  [[maybe_unused]] std::size_t main_bytes_ = 0;
};
static_assert(kv::thread_block<emulated_block>);

/// The executor of that device. Its memory is the host's.
class emulated_executor : public kv::serves_one_thread {
 public:
  using backend = emulated;

  template <class T>
  class buffer {
   public:
    buffer(emulated_executor&, std::size_t count) : values_(count) {}
    [[nodiscard]] T* data() { return values_.data(); }
    [[nodiscard]] T const* data() const { return values_.data(); }
    [[nodiscard]] std::size_t size() const { return values_.size(); }

   private:
    std::vector<T> values_;
  };

  /// Few threads and small pieces: more of a kernel's seams in small tests.
  explicit emulated_executor(std::uint64_t seed = 1) : emulated_executor(small_numbers(), seed) {}
  emulated_executor(launch_numbers const& numbers, std::uint64_t seed)
      : config_(numbers.config()), threads_(numbers.threads()), random_(seed * 2 + 1) {
    static_cast<void>(block());
  }

  [[nodiscard]] static launch_numbers small_numbers() {
    return {.segment_threads = 64,
            .entry_threads = 64,
            .entries_of_a_block = 96,
            .row_threads = 64,
            .lane_threads = 32,
            .processors = 3};
  }

  void reserve(std::size_t bytes) {
    kv::detail::sole_use const in_use("reserve", *this);
    if (scratch_.size() < bytes) scratch_.resize(bytes);
  }
  [[nodiscard]] std::size_t reserved() const { return scratch_.size(); }
  static void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  /// How many blocks a cluster may have: a power of two, at most 8.
  void set_clusters(int blocks) { clusters_ = blocks; }
  [[nodiscard]] int clusters() const { return clusters_; }

  [[nodiscard]] kv::launch_config const& config() const { return config_; }
  [[nodiscard]] kv::block_threads<int, int, int, int> const& threads() const { return threads_; }
  [[nodiscard]] std::byte* scratch() { return scratch_.data(); }
  [[nodiscard]] int* tickets() { return tickets_; }
  [[nodiscard]] kv::device_error faults() { return {&fault_}; }
  template <class T>
  static void fetch(T* to, T const* from, std::size_t count) {
    copy(reinterpret_cast<std::byte*>(to), reinterpret_cast<std::byte const*>(from), count * sizeof(T));
  }
  static void synchronize() {}
  void check() { kv::detail::throw_fault(std::exchange(fault_, kv::device_error::nothing)); }

  template <class Threads, class Kernel>
  void launch(kv::launch_shape<Threads> const& shape, Kernel const& kernel) {
    static_assert(sizeof(Kernel) <= 4096, "a kernel's arguments have 4 KiB");
    if (shape.blocks <= 0) return;
    kv::detail::check_launch(shape, {clusters_, emulated_block::most_shared});
    block().run({shape.blocks, shape.threads, shape.shared, shape.cluster}, kernel, random_);
    ++launches_;
  }
  /// How many launches and selections there have been.
  [[nodiscard]] int launches() const { return launches_; }
  /// The barriers on the path of the last launch: see emulated_block.
  [[nodiscard]] static int barriers() { return block().barriers(); }

  /// One number after another. Storage holds anything before and after.
  template <class Number>
  void select_numbers(std::int64_t count, Number const& number, kv::selected_numbers to, std::byte* storage) {
    ++launches_;
    std::memset(storage, 0xEE, kv::selection_bytes(count));
    int* next = to.to + *to.first;
    for (std::int64_t i = 0; i < count; ++i) {
      int const one = number(static_cast<unsigned>(i));
      if (one >= 0) *next++ = one;
    }
  }

 private:
  static emulated_block& block() {
    static thread_local emulated_block one;
    return one;
  }

  kv::launch_config config_;
  kv::block_threads<int, int, int, int> threads_;
  int clusters_ = emulated_block::most_cluster;
  std::uint64_t random_;
  std::vector<std::byte> scratch_;
  std::uint64_t fault_ = kv::device_error::nothing;
  int tickets_[16] = {};
  int launches_ = 0;
};

static_assert(kv::kernel_executor<emulated_executor>);

}  // namespace kvpolicy_test
