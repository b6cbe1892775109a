// SPDX-License-Identifier: Apache-2.0
// The same benchmark with rows on a GPU. Without one it says so, and the rows of the host run.
// example-begin bench
#include <kvpolicy/bench.cuh>

#include "value_aware.hpp"

KVPOLICY_BENCHMARK(value_aware{});

BENCHMARK_MAIN();
// example-end bench
