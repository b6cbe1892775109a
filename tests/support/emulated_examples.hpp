// SPDX-License-Identifier: Apache-2.0
// The executor of the examples on the emulated device: their programs, and the tests of these, without a GPU.
#pragma once

#include <kvpolicy/ops/cuda/verbs.hpp>

#include "support/emulated_device.hpp"

namespace examples {

class executor : public kvpolicy_test::emulated_executor {};
inline constexpr char const* device_name = "emulated";

}  // namespace examples
