// SPDX-License-Identifier: Apache-2.0
// One decode step of tinylm beside the time to read its weights once, measured in turn so that both see the same
// machine.
#include <benchmark/benchmark.h>

#include <fstream>
#include <iterator>
#include <kvpolicy/bench/rounds.hpp>
#include <vector>

#include "tinylm/session.hpp"

namespace {

namespace kv = kvpolicy;

std::string const folder = TINYLM_WEIGHTS_DIR;

std::vector<std::uint8_t> held_out(std::size_t bytes) {
  std::ifstream file(folder + "/held_out.txt", std::ios::binary);
  std::vector<std::uint8_t> text{std::istreambuf_iterator<char>(file), {}};
  text.resize(bytes, ' ');
  return text;
}

/// Sums every weight's bits, on all threads: what memory allows.
std::uint64_t read_once(kv::host_executor& exec, tinylm::weights const& all) {
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(exec.threads()) * 8);
  all.for_each([&](std::vector<float> const& tensor) {
    auto const pieces = static_cast<std::size_t>(exec.threads());
    exec.for_each(exec.threads(), [&](int piece, int) {
      auto const at = static_cast<std::size_t>(piece);
      auto const* const words = reinterpret_cast<std::uint32_t const*>(tensor.data());
      std::uint64_t sum = 0;
      for (std::size_t i = tensor.size() * at / pieces; i < tensor.size() * (at + 1) / pieces; ++i) sum += words[i];
      sums[at * 8] += sum;
    });
  });
  return sums[0];
}

void decode(benchmark::State& state) {
  int const context = static_cast<int>(state.range(0));
  kv::host_executor exec(static_cast<int>(state.range(1)));
  tinylm::model lm(tinylm::read_weights(folder + "/weights.safetensors"));
  tinylm::kv_pool pool(lm.about().shape(), 8 * (context / tinylm::kv_pool::page_tokens + 2));
  tinylm::session<decltype(kv::policies::full())> session(lm, exec, pool, kv::policies::full(), {.bound = context + 1});
  session.prefill(held_out(static_cast<std::size_t>(context)));
  std::vector<double> steps;
  std::vector<double> reads;
  for (auto _ : state) {
    steps.push_back(kv::bench::host_clock{}([&] { session.step('e'); }));
    state.SetIterationTime(steps.back());
    session.truncate(context);
    reads.push_back(kv::bench::host_clock{}([&] { benchmark::DoNotOptimize(read_once(exec, lm.parameters())); }));
  }
  double bytes = 0;
  lm.parameters().for_each(
      [&](std::vector<float> const& tensor) { bytes += static_cast<double>(tensor.size() * sizeof(float)); });
  state.counters["weights MB"] = bytes / 1e6;
  state.counters["step ms"] = 1e3 * kv::bench::median(steps);
  state.counters["read ms"] = 1e3 * kv::bench::median(reads);
  state.counters["step/read"] = kv::bench::median(steps) / kv::bench::median(reads);
}
BENCHMARK(decode)
    ->ArgNames({"context", "threads"})
    ->ArgsProduct({{1024}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
