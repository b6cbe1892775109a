// SPDX-License-Identifier: Apache-2.0
// The device that tests run kernels on: CUDA's under nvcc, else one on the host. Memory is the host's in both.
#pragma once

#include <kvpolicy/kvpolicy.hpp>
#include <kvpolicy/ops/cuda/verbs.hpp>  // all of them in every source: which there are decides how much scratch is asked for

#if defined(__CUDACC__)
#include "cuda/gpu_device.cuh"
#else
#include "support/emulated_device.hpp"

namespace kvpolicy_test {
using device_executor = emulated_executor;
}  // namespace kvpolicy_test
#endif
