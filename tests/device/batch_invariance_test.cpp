// SPDX-License-Identifier: Apache-2.0
#include "laws/batch_invariance.hpp"

#include "support/device.hpp"

namespace {

using namespace kvpolicy_test;

/// The emulated device with the constructor of a host executor. It throws what the device finds wrong at once.
class serving_device : public device_executor {
 public:
  explicit serving_device(int) {}

  template <class Threads, class Kernel>
  void launch(kv::launch_shape<Threads> const& shape, Kernel const& kernel) {
    device_executor::launch(shape, kernel);
    check();
  }
};

TEST_SUITE("batch invariance on a device") {
  TEST_CASE("a request is served bit for bit as if it were alone, in random schedules") {
    auto const policies = evictions_of_the_law<serving_device>();
    for (int seed = 1; seed <= rounds(24); ++seed) {
      INFO("schedule " << seed);
      random_schedule<serving_device>(static_cast<std::uint64_t>(seed), policies).run(4);
    }
  }
}

}  // namespace
