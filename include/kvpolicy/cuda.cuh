// SPDX-License-Identifier: Apache-2.0
// Every header of the library, for the host and for CUDA. Include it in sources that nvcc compiles.
#pragma once

// IWYU pragma: begin_exports
#include <kvpolicy/kvpolicy.hpp>
#include <kvpolicy/ops/cuda/run/executor.cuh>
#include <kvpolicy/ops/cuda/verbs.hpp>
// IWYU pragma: end_exports
