// SPDX-License-Identifier: Apache-2.0
// The constants of a card that tools/gpu_model.py predicts with: what launches, loads, barriers and instructions cost.
// gpu_machine [--out=FILE] prints them as one JSON object, by the names of bench/cuda/machine.json. It includes nothing
// of the library, so that `nvcc -std=c++20 -arch=sm_90 gpu_machine.cu` compiles it anywhere. NO GPU HAS RUN IT.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "machine_kernels.cuh"

namespace {

constexpr int repeats = 21;
constexpr std::size_t mega = std::size_t{1} << 20;

void checked(char const* call, cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "gpu_machine: %s: %s\n", call, cudaGetErrorString(code));
  std::exit(1);
}

/// Memory of the device, whose bytes are 0. It lives as long as the program.
template <class T>
T* room_of(std::size_t count) {
  void* made = nullptr;
  checked("cudaMalloc", cudaMalloc(&made, count * sizeof(T)));
  checked("cudaMemset", cudaMemset(made, 0, count * sizeof(T)));
  return static_cast<T*>(made);
}

// Timing
// ---------------------------------------------------------------------------------------------------------------

class machine {
 public:
  machine() {
    int device = 0;
    checked("cudaGetDevice", cudaGetDevice(&device));
    checked("cudaGetDeviceProperties", cudaGetDeviceProperties(&about_, device));
    checked("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&kilohertz_, cudaDevAttrClockRate, device));
    checked("cudaStreamCreate", cudaStreamCreate(&on_));
    for (cudaEvent_t* const each : {&begin_, &end_}) checked("cudaEventCreate", cudaEventCreate(each));
    overwritten_ = room_of<unsigned char>(flushed());
    read_ = room_of<uint4>(flushed() / sizeof(uint4));
    word_ = room_of<unsigned>(1);
  }

  [[nodiscard]] cudaDeviceProp const& about() const { return about_; }
  [[nodiscard]] cudaStream_t on() const { return on_; }
  [[nodiscard]] unsigned* word() const { return word_; }
  [[nodiscard]] int processors() const { return about_.multiProcessorCount; }
  [[nodiscard]] bool has_clusters() const { return about_.major >= 9; }
  [[nodiscard]] double gigahertz() const { return kilohertz_ / 1e6; }

  void read(uint4 const* from, std::size_t bytes) const {
    read_words<<<static_cast<unsigned>(8 * processors()), 512, 0, on_>>>(from, bytes / sizeof(uint4), word_);
  }

  /// µs of a call between two events, in a median. L2 holds nothing of it, as in the benchmarks.
  template <class Work>
  [[nodiscard]] double cold(Work const& call) const {
    return median_of(call, [this](int i) {
      checked("cudaMemsetAsync", cudaMemsetAsync(overwritten_, i, flushed(), on_));
      read(read_, flushed());
    });
  }
  /// The same right after another such call.
  template <class Work>
  [[nodiscard]] double warm(Work const& call) const {
    return median_of(call, [](int) {});
  }
  /// µs of one of `calls` equal calls in a graph.
  template <class Work>
  [[nodiscard]] double in_a_graph(int calls, Work const& call) const {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t made = nullptr;
    checked("cudaStreamBeginCapture", cudaStreamBeginCapture(on_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) call();
    checked("cudaStreamEndCapture", cudaStreamEndCapture(on_, &graph));
    checked("cudaGraphInstantiate", cudaGraphInstantiate(&made, graph, 0));
    double const all = warm([&] { checked("cudaGraphLaunch", cudaGraphLaunch(made, on_)); });
    checked("cudaGraphExecDestroy", cudaGraphExecDestroy(made));
    checked("cudaGraphDestroy", cudaGraphDestroy(graph));
    return all / calls;
  }

 private:
  [[nodiscard]] std::size_t flushed() const {
    return static_cast<std::size_t>(about_.l2CacheSize) * 5 / 2 / 256 * 256 + 256;
  }
  template <class Work, class Before>
  [[nodiscard]] double median_of(Work const& call, Before const& before) const {
    std::vector<double> taken;
    call();
    for (int i = 0; i < repeats; ++i) {
      before(i);
      checked("cudaEventRecord", cudaEventRecord(begin_, on_));
      call();
      checked("cudaEventRecord", cudaEventRecord(end_, on_));
      checked("cudaEventSynchronize", cudaEventSynchronize(end_));
      checked("a kernel", cudaGetLastError());
      float milliseconds = 0;
      checked("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, begin_, end_));
      taken.push_back(1e3 * milliseconds);
    }
    std::nth_element(taken.begin(), taken.begin() + repeats / 2, taken.end());
    return taken[repeats / 2];
  }

  cudaDeviceProp about_{};
  int kilohertz_ = 0;
  cudaStream_t on_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  unsigned char* overwritten_ = nullptr;
  uint4* read_ = nullptr;
  unsigned* word_ = nullptr;
};

/// A launch with one attribute.
template <class... Parameters, class... Arguments>
void launch(machine const& card, int blocks, int threads, cudaLaunchAttribute attribute, void (*kernel)(Parameters...),
            Arguments... given) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = card.on();
  config.attrs = &attribute;
  config.numAttrs = 1;
  checked("cudaLaunchKernelEx", cudaLaunchKernelEx(&config, kernel, given...));
}

[[nodiscard]] cudaLaunchAttribute in_clusters(int blocks) {
  cudaLaunchAttribute made{};
  made.id = cudaLaunchAttributeClusterDimension;
  made.val.clusterDim.x = static_cast<unsigned>(blocks);
  made.val.clusterDim.y = made.val.clusterDim.z = 1;
  return made;
}

[[nodiscard]] cudaLaunchAttribute programmatic() {
  cudaLaunchAttribute made{};
  made.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  made.val.programmaticStreamSerializationAllowed = 1;
  return made;
}

// What is told
// ---------------------------------------------------------------------------------------------------------

/// The members of a JSON object, as text.
class told {
 public:
  void number(std::string const& name, double value) {
    char line[32];
    std::snprintf(line, sizeof line, "%.6g", value);
    member(name, line);
  }
  void text(std::string const& name, std::string const& value) { member(name, '"' + value + '"'); }
  [[nodiscard]] std::string object() const { return "{" + members_ + "\n}\n"; }

 private:
  void member(std::string const& name, std::string const& value) {
    members_ += (members_.empty() ? "\n  \"" : ",\n  \"") + name + "\": " + value;
  }
  std::string members_;
};

void tell_launches(machine const& card, told& to) {
  constexpr int calls = 160, blocks = 288;
  auto const empty = [&] { nothing<<<blocks, 256, 0, card.on()>>>(); };
  double const plain = card.in_a_graph(calls, empty);
  to.number("empty_call", card.cold(empty));
  to.number("launch", plain);
  to.number("ticket", card.in_a_graph(calls, [&] { with_ticket<<<blocks, 256, 0, card.on()>>>(card.word()); }) - plain);
  if (card.has_clusters()) {
    auto const overlapped = [&] { launch(card, blocks, 256, programmatic(), overlapping); };
    to.number("overlap_saves", plain - card.in_a_graph(calls, overlapped));
  }
  auto const few = [&] { with_arguments<<<blocks, 256, 0, card.on()>>>(arguments<16>{}, card.word()); };
  auto const many = [&] { with_arguments<<<blocks, 256, 0, card.on()>>>(arguments<3072>{}, card.word()); };
  to.number("argument_kilobyte", (card.in_a_graph(calls, many) - card.in_a_graph(calls, few)) * 1024 / (3072 - 16));
}

/// Copies and reads by events: of 512 MB the rate, of less the time.
void tell_memory(machine const& card, told& to) {
  constexpr std::size_t most = 512 * mega;
  auto* const from = room_of<unsigned char>(most);
  auto* const into = room_of<unsigned char>(most);
  for (std::size_t const size : {std::size_t{1}, std::size_t{4}, std::size_t{12}, std::size_t{34}, std::size_t{67},
                                 std::size_t{134}, std::size_t{512}}) {
    std::size_t const bytes = size * mega;
    double const copied = card.cold(
        [&] { checked("cudaMemcpyAsync", cudaMemcpyAsync(into, from, bytes, cudaMemcpyDeviceToDevice, card.on())); });
    double const read = card.cold([&] { card.read(reinterpret_cast<uint4 const*>(from), bytes); });
    to.number("copy_" + std::to_string(size) + "_us", copied);
    to.number("read_" + std::to_string(size) + "_us", read);
    if (bytes == most) to.number("copy", 2e-6 * most / copied), to.number("read", 1e-6 * most / read);
  }
}

/// Loads that depend on one another: of 256 MB, so that L2 holds few, and of 4 MB, all of which it holds.
void tell_loads(machine const& card, told& to) {
  for (std::size_t const size : {256 * mega, 4 * mega}) {
    std::size_t const count = size / sizeof(unsigned);
    std::vector<unsigned> next(count);
    std::size_t const step = count / 4096 * 1021 + 32;  // odd in units of a line, which 2^n lines are a cycle of
    for (std::size_t i = 0; i < count; ++i) next[i] = static_cast<unsigned>((i + step) % count);
    auto* const there = room_of<unsigned>(count);
    checked("cudaMemcpy", cudaMemcpy(there, next.data(), size, cudaMemcpyHostToDevice));
    auto const of = [&](int steps) {
      return [=, &card] { follow<<<1, 1, 0, card.on()>>>(there, steps, card.word()); };
    };
    bool const is_cold = size > 64 * mega;
    double const some = is_cold ? card.cold(of(512)) : card.warm(of(512));
    double const more = is_cold ? card.cold(of(2560)) : card.warm(of(2560));
    to.number(is_cold ? "dependent_load" : "load_of_l2", (more - some) / 2048);
  }
}

void tell_barriers(machine const& card, told& to) {
  constexpr int few = 1000, many = 9000;
  auto const each = [&](auto const& of) { return (card.warm(of(many)) - card.warm(of(few))) / (many - few); };
  for (int const warps : {8, 16, 32}) {
    double const taken = each([&](int count) {
      return [=, &card] { barriers<<<1, static_cast<unsigned>(32 * warps), 0, card.on()>>>(count); };
    });
    to.number(warps == 8 ? "barrier" : "barrier_of_" + std::to_string(warps), taken);
  }
  for (int const blocks : {2, 4, 8}) {
    if (!card.has_clusters()) break;
    double const taken = each([&](int count) {
      return [=, &card] { launch(card, blocks, 256, in_clusters(blocks), cluster_barriers, count); };
    });
    to.number(blocks == 8 ? "cluster_barrier" : "cluster_barrier_of_" + std::to_string(blocks), taken);
  }
  if (!card.has_clusters()) return;
  auto* const word = reinterpret_cast<int*>(card.word());
  to.number("peer_load", each([&](int count) {
              return [=, &card] { launch(card, 2, 32, in_clusters(2), follow_peer, count, word); };
            }));
}

/// Instructions of a warp, for each multiprocessor and cycle of the highest clock.
template <work What>
void tell_rate(machine const& card, told& to, char const* name) {
  constexpr int few = 500, many = 4500, blocks_of_each = 2, threads = 1024;
  auto const of = [&](int times) {
    return card.warm([&] {
      busy<What><<<static_cast<unsigned>(blocks_of_each * card.processors()), threads, 0, card.on()>>>(
          times, reinterpret_cast<int*>(card.word()));
    });
  };
  double const instructions = 8.0 * (many - few) * blocks_of_each * threads / 32;
  to.number(name, instructions / ((of(many) - of(few)) * 1e3 * card.gigahertz()));
}

/// What straight code takes longer when neither caches nor L2 hold it.
template <int Kilobytes>
void tell_code(machine const& card, told& to) {
  auto const call = [&] {
    straight<64 * Kilobytes>
        <<<static_cast<unsigned>(card.processors()), 128, 0, card.on()>>>(3.0f, reinterpret_cast<int*>(card.word()));
  };
  double const more = card.cold(call) - card.warm(call);
  to.number("cold_code_of_" + std::to_string(Kilobytes) + "_kb", more);
  if (Kilobytes == 120) to.number("cold_code", more / 12);
}

[[nodiscard]] std::string everything() {
  machine const card;
  told to;
  to.text("name", card.about().name);
  to.number("processors", card.processors());
  to.number("clock", card.gigahertz());
  tell_launches(card, to);
  tell_memory(card, to);
  tell_loads(card, to);
  tell_barriers(card, to);
  tell_rate<work::fma>(card, to, "rate_of_fma");
  tell_rate<work::shuffle>(card, to, "rate_of_shuffle");
  tell_rate<work::reduce>(card, to, "rate_of_reduce");
  tell_rate<work::exponential>(card, to, "rate_of_ex2");
  tell_rate<work::product>(card, to, "rate_of_mma_sync");
  tell_rate<work::atomic_spread>(card, to, "rate_of_atomics_spread");
  tell_rate<work::atomic_equal>(card, to, "rate_of_atomics_equal");
  tell_rate<work::atomic_two>(card, to, "rate_of_atomics_of_two");
  tell_code<10>(card, to);
  tell_code<40>(card, to);
  tell_code<120>(card, to);
  return to.object();
}

}  // namespace

int main(int argc, char** argv) {
  bool const writes = argc == 2 && std::strncmp(argv[1], "--out=", 6) == 0;
  if (argc > 1 && !writes)
    return std::fprintf(stderr, "gpu_machine: %s is no option; there is --out=FILE\n", argv[1]), 2;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::printf("there is no GPU\n"), 77;
  std::FILE* const file = writes ? std::fopen(argv[1] + 6, "w") : stdout;
  if (file != nullptr && std::fputs(everything().c_str(), file) >= 0 && std::fclose(file) == 0) return 0;
  return std::fprintf(stderr, "gpu_machine: %s cannot be written\n", writes ? argv[1] + 6 : "the output"), 1;
}
