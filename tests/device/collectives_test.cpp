// SPDX-License-Identifier: Apache-2.0
// The collectives of a block give what loops give; on the emulated device, storage that is used again before a barrier
// ends the program.
#include "device/as_on_host.hpp"
#if !defined(__CUDACC__)
#include <csignal>
#include <cstdio>

#include "support/forked.hpp"
#endif

namespace {

using namespace kvpolicy_test;

/// What each thread gets.
struct found {
  int sum;
  int lowest;
  std::uint64_t before;
  std::uint64_t all;
  int rank;
  int votes;
  int of_warp;
  int of_eight;
  int of_batch;
  int of_three;
  float of_floats;
};

struct collect {
  int const* value;
  found* to;
  int* sorted;
  int count;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    kv::detail::shared_arena arena(block);
    auto* const storage = arena.take<kv::collective_storage>(2);
    auto* const sorting = arena.take<std::byte>(static_cast<int>(kv::sort_bytes(block.threads())));
    int const mine = value[block.thread()];
    found& here = to[block.thread()];
    here.sum = block.reduce(storage, mine, kv::detail::plus_op{});
    here.lowest = block.reduce(storage + 1, mine, kv::detail::min_op{});
    block.sync();
    auto const sum = block.exclusive_sum(storage, static_cast<std::uint64_t>(mine) << 32);
    here.before = sum.before;
    here.all = sum.all;
    auto const votes = block.rank(storage + 1, mine % 3 == 0);
    here.rank = votes.before;
    here.votes = votes.all;
    here.of_warp = block.reduce_warp(mine, kv::detail::max_op{});
    here.of_eight = block.template reduce_warp<8>(mine, kv::detail::plus_op{});
    here.of_batch = batch<32, 32>(block, mine);
    here.of_three = batch<3, 4>(block, mine);
    float const numbers[] = {static_cast<float>(mine) * 0.1f, static_cast<float>(mine) * 0.7f};
    here.of_floats = block.reduce_warp_batched(numbers, kv::detail::plus_op{});
    block.sort(sorting, sorted, count);
  }

  /// Sums `Count` numbers of each thread over `Width` threads: the i-th is (i + 1) times `mine`.
  template <int Count, int Width, class Block>
  KVPOLICY_HD static int batch(Block& block, int mine) {
    int numbers[as_size(Count)];
    for (int i = 0; i < Count; ++i) numbers[i] = (i + 1) * mine;
    return block.template reduce_warp_batched<Width>(numbers, kv::detail::plus_op{});
  }
};

/// The floats of a warp, added as pairs, then as fours, and so on: the one order that has these bits.
float in_pairs(std::vector<float> of) {
  for (std::size_t half = 1; half < of.size(); half *= 2) {
    for (std::size_t i = 0; i < of.size(); i += 2 * half) of[i] += of[i + half];
  }
  return of.front();
}

TEST_SUITE("device/collectives") {
  TEST_CASE("collectives give what loops give") {
    CHECK(rc::check([] {
      device_executor device(any_numbers(), 5);
      int const threads = device.threads().segment;
      auto const size = as_size(threads);
      auto const some = [](std::size_t n) {
        return *rc::gen::container<std::vector<int>>(n, rc::gen::inRange(0, 1 << 20));
      };
      std::vector<int> const value = some(size);
      std::vector<found> got(size);
      std::vector<int> sorted = some(*rc::gen::inRange<std::size_t>(0, kv::sorted_of_a_thread * size + 1));
      std::vector<int> expected = sorted;
      std::sort(expected.begin(), expected.end());
      std::size_t const shared = 2 * kv::detail::collective_bytes() + kv::sort_bytes(threads);
      device.launch(kv::launch_shape{1, device.threads().segment, shared},
                    collect{value.data(), got.data(), sorted.data(), static_cast<int>(sorted.size())});
      device.synchronize();
      RC_ASSERT(sorted == expected);
      int const sum = std::accumulate(value.begin(), value.end(), 0);
      int const lowest = *std::min_element(value.begin(), value.end());
      std::uint64_t before = 0;
      int rank = 0;
      for (std::size_t t = 0; t < size; ++t) {
        auto const warp = value.begin() + static_cast<std::ptrdiff_t>(t / 32 * 32);
        auto const eight = value.begin() + static_cast<std::ptrdiff_t>(t / 8 * 8);
        RC_ASSERT(got[t].sum == sum);
        RC_ASSERT(got[t].lowest == lowest);
        RC_ASSERT(got[t].before == before << 32);
        RC_ASSERT(got[t].all == static_cast<std::uint64_t>(sum) << 32);
        RC_ASSERT(got[t].rank == rank);
        RC_ASSERT(got[t].votes == std::count_if(value.begin(), value.end(), [](int v) { return v % 3 == 0; }));
        RC_ASSERT(got[t].of_warp == *std::max_element(warp, warp + 32));
        RC_ASSERT(got[t].of_eight == std::accumulate(eight, eight + 8, 0));
        int const third = static_cast<int>(t % 4) + 1;
        auto const four = value.begin() + static_cast<std::ptrdiff_t>(t / 4 * 4);
        RC_ASSERT(got[t].of_batch == static_cast<int>(t % 32 + 1) * std::accumulate(warp, warp + 32, 0));
        RC_ASSERT((third == 4 || got[t].of_three == third * std::accumulate(four, four + 4, 0)));
        if (t % 32 < 2) {
          std::vector<float> floats;
          for (auto v = warp; v != warp + 32; ++v)
            floats.push_back(static_cast<float>(*v) * (t % 32 == 0 ? 0.1f : 0.7f));
          RC_ASSERT(got[t].of_floats == in_pairs(floats));
        }
        before += static_cast<std::uint64_t>(value[t]);
        rank += value[t] % 3 == 0 ? 1 : 0;
      }
    }));
  }

#if !defined(__CUDACC__)
  /// A block of one thread that writes down what `last_of` asks of it.
  struct written_down {
    int index_of_thread;
    std::string* calls;
    [[nodiscard]] int thread() const { return index_of_thread; }
    void sync() const { *calls += "barrier "; }
    void fence() const { *calls += "fence "; }
    int atomic_add(int* to, int more) const {
      *calls += "atomic ";
      return std::exchange(*to, *to + more);
    }
  };

  TEST_CASE("the ticket of the last block stands between fences of the thread that takes it, after a barrier") {
    for (int const thread : {0, 1}) {
      std::string calls;
      int ticket = 1, storage = thread == 0 ? 7 : 1;  // thread 0 has written the storage before thread 1 reads it
      written_down block{thread, &calls};
      CHECK(kv::detail::last_of(block, 2, &ticket, &storage));
      CHECK(calls == (thread == 0 ? "barrier fence atomic fence barrier barrier " : "barrier barrier barrier "));
      CHECK(ticket == thread);
    }
  }

  /// Two collectives, one after the other.
  struct two_collectives {
    int apart;       ///< bytes between their storages
    bool barrier;    ///< between them
    bool different;  ///< the upper threads call another one first

    template <class Block>
    KVPOLICY_HD void operator()(Block& block) const {
      auto* const first = reinterpret_cast<kv::collective_storage*>(block.shared());
      auto* const second = reinterpret_cast<kv::collective_storage*>(block.shared() + apart);
      bool const swaps = different && block.thread() >= 32;
      static_cast<void>(block.reduce(swaps ? second : first, 1, kv::detail::plus_op{}));
      if (barrier) block.sync();
      static_cast<void>(block.exclusive_sum(swaps ? first : second, 1));
    }
  };

  /// A number that is written where a collective still works.
  struct early_write {
    int* to;
    bool barrier;
    template <class Block>
    KVPOLICY_HD void operator()(Block& block) const {
      auto* const storage = reinterpret_cast<kv::collective_storage*>(block.shared());
      static_cast<void>(block.rank(storage, true));
      if (barrier) block.sync();
      reinterpret_cast<int*>(storage)[block.thread()] = 7;
      block.sync();
      to[block.thread()] = reinterpret_cast<int const*>(storage)[block.thread() ^ 1];
    }
  };

  template <class Kernel>
  ending ends(Kernel const& kernel) {
    return in_a_fork([&] {
      std::signal(SIGABRT, SIG_DFL);  // the end of this process is no failure of the test
      static_cast<void>(std::freopen("/dev/null", "w", stderr));
      emulated_executor device;
      device.launch(kv::launch_shape{2, 64, 4096}, kernel);
      return true;
    });
  }

  TEST_CASE("a collective's storage is not used again before a barrier") {
    CHECK(ends(two_collectives{0, true, false}) == ending::all_good);
    CHECK(ends(two_collectives{1024, false, false}) == ending::all_good);
    CHECK(ends(two_collectives{0, false, false}) == ending::ended_by_signal);
    CHECK(ends(two_collectives{256, false, false}) == ending::ended_by_signal);
    CHECK(ends(two_collectives{1024, true, true}) == ending::ended_by_signal);
  }

  TEST_CASE("what is written early into a collective's storage is lost") {
    std::vector<int> seen(64);
    emulated_executor device;
    device.launch(kv::launch_shape{1, 64, 4096}, early_write{seen.data(), true});
    CHECK(std::count(seen.begin(), seen.end(), 7) == 64);
    expected_races const races;
    device.launch(kv::launch_shape{1, 64, 4096}, early_write{seen.data(), false});
    CHECK(std::count(seen.begin(), seen.end(), 7) < 64);
    if (under_thread_sanitizer) CHECK(races.count() > 0);
  }
#endif
}

}  // namespace
