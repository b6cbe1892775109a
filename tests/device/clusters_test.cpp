// SPDX-License-Identifier: Apache-2.0
// What the blocks of a cluster know of each other, and what launches of clusters are refused; on the emulated device, a
// barrier of the cluster that is left out is seen.
#include "support/device.hpp"
#include "support/test.hpp"
#if !defined(__CUDACC__)
#include <csignal>
#include <cstdio>

#include "support/forked.hpp"
#endif

namespace {

using namespace kvpolicy_test;

/// What a thread of a block sees.
struct seen {
  int index, rank, blocks;
  int sum;        ///< over the block
  int neighbour;  ///< what the next block of the cluster has
  int given;      ///< what the block before has stored here
};

/// Each thread shows a number to the same thread of the block before, and stores one in that of the block behind.
struct exchange_kernel {
  seen* to;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    kv::detail::shared_arena arena(block);
    auto* const storage = arena.take<kv::collective_storage>(1);
    int* const shown = arena.take<int>(block.threads()) + block.thread();
    int* const given = arena.take<int>(block.threads()) + block.thread();
    int const next = (block.cluster_rank() + 1) % block.cluster_blocks();
    seen& mine = to[block.index() * block.threads() + block.thread()];
    mine.index = block.index();
    mine.rank = block.cluster_rank();
    mine.blocks = block.cluster_blocks();
    mine.sum = block.reduce(storage, block.index(), kv::detail::plus_op{});
    *shown = 1000 * block.index() + block.thread();
    block.sync_cluster();
    mine.neighbour = *block.of_block(next, shown);
    *block.of_block(next, given) = 7 * block.index() + block.thread();
    block.sync_cluster();
    mine.given = *given;
  }
};

TEST_SUITE("device/clusters") {
  TEST_CASE("the blocks of a cluster are neighbours, and see each other's shared memory") {
    device_executor device;
    int const threads = device.threads().segment;
    for (int cluster = 1; cluster <= device.clusters(); cluster *= 2) {
      int const blocks = 3 * cluster;
      std::vector<seen> got(as_size(blocks * threads));
      std::size_t const shared = kv::detail::collective_bytes() + 2 * sizeof(int) * as_size(threads);
      for (int time = 0; time < 5; ++time) {
        device.launch(kv::launch_shape{blocks, device.threads().segment, shared, cluster}, exchange_kernel{got.data()});
        device.synchronize();
        bool right = true;
        for (int i = 0; i < blocks * threads; ++i) {
          seen const& of = got[as_size(i)];
          int const index = i / threads;
          int const rank = index % cluster;
          int const next = index - rank + (rank + 1) % cluster;
          int const before = index - rank + (rank + cluster - 1) % cluster;
          right = right && of.index == index && of.rank == rank && of.blocks == cluster;
          right = right && of.sum == index * threads && of.neighbour == 1000 * next + i % threads;
          right = right && of.given == 7 * before + i % threads;
        }
        CHECK(right);
      }
    }
  }

#if !defined(__CUDACC__)
  struct does_nothing {
    template <class Block>
    KVPOLICY_HD void operator()(Block&) const {}
  };

  TEST_CASE("a launch that the device does not have is refused by the name of what is wrong") {
    emulated_executor device;
    auto const refused = [&](kv::launch_shape<int> const& shape) {
      return error_of([&] { device.launch(shape, does_nothing{}); });
    };
    CHECK(refused({16, 64, 0, 8}).empty());
    CHECK(refused({0, 64, 0, 3}).empty());  // nothing is launched
    CHECK(refused({6, 64, 0, 3}) == "launch: shape.cluster = 3, but a cluster has a power of two of blocks, at most 8");
    CHECK(refused({6, 64, 0, 0}) == "launch: shape.cluster = 0, but a cluster has a power of two of blocks, at most 8");
    CHECK(refused({16, 64, 0, 16}) ==
          "launch: shape.cluster = 16, but a cluster has a power of two of blocks, at most 8");
    CHECK(refused({12, 64, 0, 8}) == "launch: shape.blocks = 12, but there are whole clusters of 8 blocks");
    CHECK(refused({8, 64, 232449, 8}) == "launch: shape.shared = 232449, but a block has at most 232448 bytes");
    device.set_clusters(1);
    CHECK(refused({8, 64, 0, 2}) == "launch: shape.cluster = 2, but a cluster has a power of two of blocks, at most 1");
    CHECK(refused({8, 64, 0}).empty());
  }

  /// A barrier that is left out, or that not all threads reach.
  enum class fault { none, no_first, no_between, no_last, block_alone, thread_alone };

  /// The number of the next block, twice.
  struct two_rounds {
    int* to;
    fault what;

    template <class Block>
    KVPOLICY_HD void operator()(Block& block) const {
      auto* const number = reinterpret_cast<int*>(block.shared()) + block.thread();
      int const next = (block.cluster_rank() + 1) % block.cluster_blocks();
      int const at = block.index() * block.threads() + block.thread();
      *number = 100 + block.index();
      if (what != fault::no_first) block.sync_cluster();
      to[2 * at] = *block.of_block(next, number);
      if (what != fault::no_between) block.sync_cluster();
      *number = 200 + block.index();
      if (what == fault::block_alone && block.cluster_rank() == 1) return;
      if (what == fault::thread_alone && block.index() == 0 && block.thread() == 5) return;
      block.sync_cluster();
      to[2 * at + 1] = *block.of_block(next, number);
      if (what != fault::no_last) block.sync_cluster();
    }
  };

  constexpr int threads = 64;
  constexpr int cluster = 4;
  constexpr int blocks = 2 * cluster;

  /// How many numbers are wrong, by one schedule of threads and blocks.
  int wrong(fault what, std::uint64_t seed) {
    emulated_executor device(seed);
    std::vector<int> got(as_size(2 * blocks * threads));
    device.launch(kv::launch_shape{blocks, threads, 1024, cluster}, two_rounds{got.data(), what});
    int found = 0;
    for (int i = 0; i < 2 * blocks * threads; ++i) {
      int const index = i / (2 * threads);
      int const next = index / cluster * cluster + (index + 1) % cluster;
      found += got[as_size(i)] == 100 * (i % 2 + 1) + next ? 0 : 1;
    }
    return found;
  }

  ending ends(fault what) {
    return in_a_fork([&] {
      std::signal(SIGABRT, SIG_DFL);  // the end of this process is no failure of the test
      static_cast<void>(std::freopen("/dev/null", "w", stderr));
      return wrong(what, 1) == 0;
    });
  }

  TEST_CASE("a barrier of the cluster that not all of its threads reach ends the program") {
    CHECK(ends(fault::none) == ending::all_good);
    CHECK(ends(fault::block_alone) == ending::ended_by_signal);
    CHECK(ends(fault::thread_alone) == ending::ended_by_signal);
  }

  TEST_CASE("another block's memory is not asked for before the first barrier of the cluster") {
    CHECK(ends(fault::no_first) == ending::ended_by_signal);
  }

  TEST_CASE("a barrier of the cluster that is left out is seen, and so is a block that ends early") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      CHECK(wrong(fault::none, seed) == 0);
      {
        expected_races const races;
        CHECK(wrong(fault::no_between, seed) > 0);
        if (under_thread_sanitizer && seed == 1) CHECK(races.count() > 0);
      }
#if !defined(KVPOLICY_TEST_ASAN)
      CHECK(wrong(fault::no_last, seed) > 0);
#endif
    }
#if defined(KVPOLICY_TEST_ASAN)
    CHECK(ends(fault::no_last) != ending::all_good);
#endif
  }
#endif
}

}  // namespace
