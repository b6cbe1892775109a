// SPDX-License-Identifier: Apache-2.0
// The main of every benchmark on a GPU: what the device is, and what its memory can do, at the head of the report.
#include <cstring>

#include "cuda/gpu_measure.cuh"

namespace {

namespace kv = kvpolicy;

constexpr int skipped = 77;

void say(char const* what, char const* form, double value) {
  char line[64];
  std::snprintf(line, sizeof line, form, value);
  benchmark::AddCustomContext(what, line);
}

std::string version(int of) { return std::to_string(of / 1000) + "." + std::to_string(of % 1000 / 10); }

void tell_device() {
  using bench::gpu::attribute;
  int device = 0, driver = 0, runtime = 0;
  cudaDeviceProp about{};
  bench::gpu::checked("cudaGetDevice", cudaGetDevice(&device));
  bench::gpu::checked("cudaGetDeviceProperties", cudaGetDeviceProperties(&about, device));
  bench::gpu::checked("cudaDriverGetVersion", cudaDriverGetVersion(&driver));
  bench::gpu::checked("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&runtime));
  benchmark::AddCustomContext("device", about.name);
  benchmark::AddCustomContext("compute capability", std::to_string(about.major) + "." + std::to_string(about.minor));
  benchmark::AddCustomContext("driver", version(driver));
  benchmark::AddCustomContext("runtime", version(runtime));
  say("multiprocessors", "%.0f", about.multiProcessorCount);
  say("clock", "%.0f MHz", attribute(cudaDevAttrClockRate) / 1e3);
  say("memory clock", "%.0f MHz", attribute(cudaDevAttrMemoryClockRate) / 1e3);
  say("L2", "%.0f MiB", attribute(cudaDevAttrL2CacheSize) / 1048576.0);
  benchmark::AddCustomContext("ECC", attribute(cudaDevAttrEccEnabled) != 0 ? "on" : "off");
  auto const numbers = kv::launch_config_for(10 * about.major + about.minor, about.multiProcessorCount);
  benchmark::AddCustomContext("launch numbers", kv::to_string(bench::gpu::asked_numbers(numbers)));
}

void tell_rates() {
  auto const& found = bench::gpu::rates_of_device();
  say("copy, read and written", "%.1f GB/s", found.copy / 1e9);
  say("copy, median", "%.1f GB/s", found.copy_median / 1e9);
  say("read", "%.1f GB/s", found.read / 1e9);
  say("read, median", "%.1f GB/s", found.read_median / 1e9);
}

}  // namespace

int main(int argc, char** argv) try {
  bool lists = false;
  for (int i = 1; i < argc; ++i) lists = lists || std::strncmp(argv[i], "--benchmark_list_tests", 22) == 0;
  int devices = 0;
  if (!lists && (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)) {
    std::printf("there is no GPU\n");
    return skipped;
  }
  if (!lists) tell_device(), tell_rates();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  bool const any = benchmark::RunSpecifiedBenchmarks() > 0;
  benchmark::Shutdown();
  return any ? 0 : 1;
} catch (std::exception const& wrong) {
  std::fprintf(stderr, "%s\n", wrong.what());
  return 1;
}
