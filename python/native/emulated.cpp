// SPDX-License-Identifier: Apache-2.0
// The evictor on the emulated device of the tests, whose memory is the host's.
#include "evictor_on.hpp"
#include "support/device.hpp"

namespace kvpolicy_python {

bool const has_device = true;

std::unique_ptr<evictor> make_device_evictor(evictor_options const& from, int, std::uintptr_t) {
  auto const enter = [] { return 0; };
  return std::make_unique<evictor_on<kvpolicy_test::emulated_executor, std::remove_const_t<decltype(enter)>>>(
      from, "cpu", enter);
}

}  // namespace kvpolicy_python
