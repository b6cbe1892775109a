// SPDX-License-Identifier: Apache-2.0
// The device of the tests on a GPU. The same sources run on the host, on emulated_device.hpp.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shared_memory.cuh"
#include "support/launch_numbers.hpp"

namespace kvpolicy_test {

class device_executor : public examples::executor {
 public:
  explicit device_executor(std::uint64_t = 1) {}
  device_executor(launch_numbers const& numbers, std::uint64_t) {
    kvpolicy::launch_config asked = numbers.config();
    asked.shared_bytes = std::max(asked.shared_bytes, 48 * 1024);  // an emulated block may have less
    set_launch_config(asked);
  }
};
static_assert(kvpolicy::kernel_executor<device_executor>);

}  // namespace kvpolicy_test
