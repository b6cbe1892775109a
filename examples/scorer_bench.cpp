// SPDX-License-Identifier: Apache-2.0
// Benchmarks a scorer of your own beside two of the library.
// example-begin bench
#include <kvpolicy/bench.hpp>

#include "value_aware.hpp"

KVPOLICY_BENCHMARK(value_aware{});

BENCHMARK_MAIN();
// example-end bench
