// SPDX-License-Identifier: Apache-2.0
// The tests of tests/device on a GPU. Without one they are skipped, and counted.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstdio>

namespace {

constexpr int skipped = 77;

int gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace

int main(int count, char** arguments) {
  doctest::Context context(count, arguments);
  if (gpus() > 0 || context.shouldExit()) return context.run();
  std::printf("there is no GPU; skipped:\n");
  char const* const only_count[] = {arguments[0], "--count"};
  context.applyCommandLine(2, only_count);
  context.run();
  return skipped;
}
