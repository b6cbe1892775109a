// SPDX-License-Identifier: Apache-2.0
// Included before a source of the tests, runs it on the emulated device: there `kv::host_executor` is the device's.
// What the device finds wrong with its data is thrown at once, so that a refused call is seen to change nothing, as on
// the host.
#pragma once

#define KVPOLICY_TEST_ON_DEVICE 1

#include <kvpolicy/kvpolicy.hpp>
#include <kvpolicy/ops/cuda/verbs.hpp>

#include "support/emulated_device.hpp"

namespace kvpolicy::inline v0 {

class executor_on_device : public kvpolicy_test::emulated_executor {
 public:
  explicit executor_on_device(int = 1) {}
  executor_on_device(int, isa) {}

  template <class Threads, class Kernel>
  void launch(launch_shape<Threads> const& shape, Kernel const& kernel) {
    emulated_executor::launch(shape, kernel);
    check();
  }
};

}  // namespace kvpolicy::inline v0

#define host_executor executor_on_device
