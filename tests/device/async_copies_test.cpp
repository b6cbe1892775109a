// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies into a ring of places in shared memory; on the emulated device, a copy that is not waited for, a
// place that is used too soon and a thread that ends early are seen.
#include <kvpolicy/ops/cuda/run/async_ring.hpp>

#include "support/device.hpp"
#include "support/test.hpp"
#if !defined(__CUDACC__)
#include <csignal>
#include <cstdio>

#include "support/forked.hpp"
#endif

namespace {

using namespace kvpolicy_test;

enum class fault { none, no_wait, late_wait, refilled_before_use, written, ends_early };

/// Each thread adds up `steps` pairs of four numbers, which it loads three steps ahead.
struct adding_kernel {
  using ring = kv::detail::async_ring<3, 2>;
  struct alignas(16) four {
    int of[4];
  };
  four const* from;  ///< [step][2][thread]
  int steps;
  int* to;
  fault what;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    kv::detail::shared_arena arena(block);
    auto* const before = reinterpret_cast<four*>(block.shared());
    ring const places(block, arena);
    int loaded = 0;
    auto const fill = [&] {
      if (loaded < steps) {
        places.fill(block, loaded % 3, [&](int i) {
          return reinterpret_cast<std::byte const*>(from + (loaded * 2 + i) * block.threads() + block.thread());
        });
      }
      block.commit_loads();
      ++loaded;
    };
    while (loaded < 3) fill();
    if (what == fault::written) before[block.thread()] = {};
    if (what == fault::ends_early) return;
    int sum = 0;
    for (int step = 0; step < steps; ++step) {
      if (what == fault::late_wait) block.template wait_loads<3>();
      if (what != fault::no_wait && what != fault::late_wait) places.wait(block);
      if (what == fault::refilled_before_use) fill();
      for (int i = 0; i < 2; ++i) {
        four const some = places.template taken<four>(step % 3, i);
        for (int const number : some.of) sum += number;
      }
      if (what != fault::refilled_before_use) fill();
    }
    block.template wait_loads<0>();
    to[block.index() * block.threads() + block.thread()] = sum;
  }
};

/// True if all sums are right.
bool adds_up(int steps, fault what) {
  device_executor device;
  int const threads = device.threads().entry;
  constexpr int blocks = 3;
  std::vector<adding_kernel::four> from(as_size(2 * steps * threads));
  for (std::size_t i = 0; i < from.size(); ++i) {
    for (int k = 0; k < 4; ++k) from[i].of[k] = static_cast<int>(i % 1000) * 5 + k;
  }
  std::vector<int> got(as_size(blocks * threads), -1);
  device.launch(kv::launch_shape{blocks, device.threads().entry, adding_kernel::ring::bytes(threads)},
                adding_kernel{from.data(), steps, got.data(), what});
  device.synchronize();
  bool right = true;
  for (int t = 0; t < blocks * threads; ++t) {
    int sum = 0;
    for (int i = 0; i < 2 * steps; ++i) {
      for (int const number : from[as_size(i * threads + t % threads)].of) sum += number;
    }
    right = right && got[as_size(t)] == sum;
  }
  return right;
}

TEST_SUITE("device/async_copies") {
  TEST_CASE("what is loaded ahead is what is read, for fewer and for more steps than the ring has places") {
    for (int const steps : {1, 2, 3, 4, 17}) {
      CAPTURE(steps);
      CHECK(adds_up(steps, fault::none));
    }
  }

#if !defined(__CUDACC__)
  ending ends(fault what) {
    return in_a_fork([&] {
      std::signal(SIGABRT, SIG_DFL);  // the end of this process is no failure of the test
      static_cast<void>(std::freopen("/dev/null", "w", stderr));
      return adds_up(5, what);
    });
  }

  TEST_CASE("a copy that is not waited for, and a place that is used too soon, are seen") {
    CHECK(ends(fault::none) == ending::all_good);
    for (fault const what : {fault::no_wait, fault::late_wait, fault::refilled_before_use}) {
      CAPTURE(static_cast<int>(what));
      CHECK(ends(what) != ending::all_good);
    }
    CHECK(ends(fault::written) != ending::all_good);  // the address sanitizer ends it otherwise
    CHECK(ends(fault::ends_early) == ending::ended_by_signal);
  }
#endif
}

}  // namespace
