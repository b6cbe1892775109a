// SPDX-License-Identifier: Apache-2.0
// What the thread sanitizer sees of a kernel on the emulated device: every race of its threads, in whatever order they
// run, and no race where barriers or fences order them.
#include "support/sanitized.hpp"
#if defined(KVPOLICY_TEST_TSAN)
#include <array>
#include <vector>

#include "support/device.hpp"
#include "support/test.hpp"

using namespace kvpolicy_test;

namespace {

TEST_SUITE("device/data_races") {
  constexpr int blocks = 4;
  constexpr int threads = 64;

  enum class order { block, warp, shuffle, collective, none };

  /// Passes a number to the neighbour, by shared memory.
  template <order By, bool SamePlace = false>
  struct pass_on {
    int* to;  ///< with `SamePlace`, all blocks write to the same numbers

    template <class Block>
    KVPOLICY_HD void operator()(Block& block) const {
      auto* const numbers = reinterpret_cast<int*>(block.shared());
      auto* const storage = reinterpret_cast<kv::collective_storage*>(block.shared() + 1024);
      numbers[block.thread()] = block.thread();
      if (By == order::block) block.sync();
      if (By == order::warp) block.sync_warp();
      if (By == order::shuffle) static_cast<void>(block.shuffle(1, 0));
      if (By == order::collective) static_cast<void>(block.reduce(storage, 1, kv::detail::plus_op{}));
      to[(SamePlace ? 0 : block.index() * threads) + block.thread()] = numbers[block.thread() ^ 1];
    }
  };

  /// The last block adds up what all have written.
  template <bool Ordered>
  struct sum_of_blocks {
    int* parts;
    int* ticket;
    int* sum;

    template <class Block>
    KVPOLICY_HD void operator()(Block& block) const {
      auto* const last = reinterpret_cast<int*>(block.shared());
      if (block.thread() == 0) parts[block.index()] = 1;
      if (Ordered ? !kv::detail::last_of(block, blocks, ticket, last) : block.index() != 0) return;
      if (block.thread() != 0) return;
      for (int i = 0; i < blocks; ++i) *sum += parts[i];
    }
  };

  /// A stage that is loaded again, while another thread may still read it if there is no barrier.
  template <bool Barrier>
  struct reused_stage {
    std::byte const* from;
    int* to;

    template <class Block>
    KVPOLICY_HD void operator()(Block& block) const {
      std::byte* const stage = block.shared();
      for (int round = 0; round < 2; ++round) {
        block.load_async(stage + 16 * block.thread(), from + 16 * block.thread());
        block.commit_loads();
        block.template wait_loads<0>();
        block.sync();
        to[block.index() * threads + block.thread()] = reinterpret_cast<int const*>(stage)[4 * (block.thread() ^ 1)];
        if (Barrier) block.sync();
      }
    }
  };

  /// True if the sanitizer sees a race.
  template <class Kernel>
  bool races(Kernel const& kernel) {
    expected_races const seen;
    emulated_executor device;
    device.launch(kv::launch_shape{blocks, threads, 4096}, kernel);
    return seen.count() > 0;
  }

  TEST_CASE("a barrier of the block or of the warp orders shared memory; a shuffle or a collective does not") {
    std::vector<int> to(blocks * threads);
    CHECK_FALSE(races(pass_on<order::block>{to.data()}));
    CHECK_FALSE(races(pass_on<order::warp>{to.data()}));
    CHECK(races(pass_on<order::shuffle>{to.data()}));
    CHECK(races(pass_on<order::collective>{to.data()}));
    CHECK(races(pass_on<order::none>{to.data()}));
  }

  TEST_CASE("only a ticket between fences orders what blocks write") {
    std::vector<int> to(blocks * threads);
    CHECK(races(pass_on<order::block, true>{to.data()}));
    int parts[blocks] = {}, ticket = 0, sum = 0;
    CHECK_FALSE(races(sum_of_blocks<true>{parts, &ticket, &sum}));
    CHECK(races(sum_of_blocks<false>{parts, &ticket, &sum}));
  }

  TEST_CASE("a stage is not loaded again before a barrier") {
    alignas(16) std::array<std::byte, 16 * threads> const from{};
    std::vector<int> to(blocks * threads);
    CHECK_FALSE(races(reused_stage<true>{from.data(), to.data()}));
    CHECK(races(reused_stage<false>{from.data(), to.data()}));
  }
}

}  // namespace
#endif
