// SPDX-License-Identifier: Apache-2.0
// What benchmarks on a GPU are made of: checked calls, memory of the device, streams, events, graphs, and an executor
// whose launch numbers the environment may override.
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <kvpolicy/by_name/set_fields.hpp>
#include <kvpolicy/cuda.cuh>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace bench::gpu {

namespace kv = kvpolicy;

inline void checked(char const* call, cudaError_t code) {
  if (code != cudaSuccess) throw kv::cuda_error(call, code);
}

/// Memory of the device, not initialised.
template <class T>
class array {
 public:
  explicit array(std::size_t count = 0) : count_(count) {
    if (count > 0) checked("cudaMalloc", cudaMalloc(&data_, count * sizeof(T)));
  }
  explicit array(std::span<T const> from) : array(from.size()) { put(from); }
  explicit array(std::vector<T> const& from) : array(std::span<T const>(from)) {}
  array(array&& from) noexcept : data_(std::exchange(from.data_, nullptr)), count_(std::exchange(from.count_, 0)) {}
  array& operator=(array&& from) noexcept {
    std::swap(data_, from.data_);
    std::swap(count_, from.count_);
    return *this;
  }
  ~array() { static_cast<void>(cudaFree(data_)); }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] std::size_t bytes() const { return count_ * sizeof(T); }

  /// Waits for the whole device, before and after.
  void put(std::span<T const> from) const {
    checked("cudaDeviceSynchronize", cudaDeviceSynchronize());
    checked("cudaMemcpy", cudaMemcpy(data_, from.data(), from.size_bytes(), cudaMemcpyHostToDevice));
    checked("cudaDeviceSynchronize", cudaDeviceSynchronize());
  }
  /// What is there when everything before is done. Waits for the whole device.
  [[nodiscard]] std::vector<T> get() const {
    std::vector<T> made(count_);
    checked("cudaDeviceSynchronize", cudaDeviceSynchronize());
    checked("cudaMemcpy", cudaMemcpy(made.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return made;
  }
  /// Every byte becomes this one: what is never written cannot pass for a result.
  void poison(int byte = 0xA5) const {
    if (count_ > 0) checked("cudaMemset", cudaMemset(data_, byte, bytes()));
    checked("cudaDeviceSynchronize", cudaDeviceSynchronize());
  }

 private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

/// A stream that the default stream does not wait for.
class stream {
 public:
  stream() { checked("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&on_, cudaStreamNonBlocking)); }
  stream(stream const&) = delete;
  stream& operator=(stream const&) = delete;
  ~stream() { static_cast<void>(cudaStreamDestroy(on_)); }
  [[nodiscard]] cudaStream_t get() const { return on_; }
  void wait() const { checked("cudaStreamSynchronize", cudaStreamSynchronize(on_)); }

 private:
  cudaStream_t on_ = nullptr;
};

class event {
 public:
  event() { checked("cudaEventCreate", cudaEventCreate(&at_)); }
  event(event const&) = delete;
  event& operator=(event const&) = delete;
  ~event() { static_cast<void>(cudaEventDestroy(at_)); }
  void record(stream const& on) const { checked("cudaEventRecord", cudaEventRecord(at_, on.get())); }
  void wait() const { checked("cudaEventSynchronize", cudaEventSynchronize(at_)); }
  [[nodiscard]] double seconds_since(event const& begin) const {
    float ms = 0;
    checked("cudaEventElapsedTime", cudaEventElapsedTime(&ms, begin.at_, at_));
    return 1e-3 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t at_ = nullptr;
};

/// What `work` launches on a stream, captured once: run again by one call.
class graph {
 public:
  template <class Work>
  graph(stream const& on, Work const& work) {
    checked("cudaStreamBeginCapture", cudaStreamBeginCapture(on.get(), cudaStreamCaptureModeThreadLocal));
    work();
    cudaGraph_t captured = nullptr;
    checked("cudaStreamEndCapture", cudaStreamEndCapture(on.get(), &captured));
    cudaError_t const made = cudaGraphInstantiate(&run_, captured, 0);
    static_cast<void>(cudaGraphDestroy(captured));
    checked("cudaGraphInstantiate", made);
  }
  graph(graph const&) = delete;
  graph& operator=(graph const&) = delete;
  ~graph() { static_cast<void>(cudaGraphExecDestroy(run_)); }
  void launch(stream const& on) const { checked("cudaGraphLaunch", cudaGraphLaunch(run_, on.get())); }

 private:
  cudaGraphExec_t run_ = nullptr;
};

/// The device's launch numbers, or those that KVPOLICY_LAUNCH names: `entries_of_a_block=512,processors=66`.
inline kv::launch_config asked_numbers(kv::launch_config from) {
  char const* const asked = std::getenv("KVPOLICY_LAUNCH");
  if (asked == nullptr || *asked == '\0') return from;
  std::string text = "launch_numbers(";
  text.append(asked).append(")");
  kv::detail::set_fields(from, kv::split_spec(text).front());
  return from;
}

/// The library's executor, with those numbers; it counts what it launches.
class executor : public kv::cuda_executor {
 public:
  explicit executor(gpu::stream const& on) : cuda_executor(on.get()) { set_launch_config(asked_numbers(config())); }

  template <class Threads, class Kernel>
  void launch(kv::launch_shape<Threads> const& shape, Kernel const& kernel) {
    ++launches_;
    cuda_executor::launch(shape, kernel);
  }
  /// Kernels that `work` launches. Waits for them, because the host's next calls may write what they read.
  template <class Work>
  [[nodiscard]] int launches_of(Work const& work) {
    int const before = launches_;
    work();
    synchronize();
    return launches_ - before;
  }

 private:
  int launches_ = 0;
};
static_assert(kv::kernel_executor<executor>);

/// A keep set in memory of the device.
class device_keep {
 public:
  device_keep(int segments, std::int64_t capacity)
      : offset_(static_cast<std::size_t>(segments) + 1),
        ordinal_(static_cast<std::size_t>(capacity)),
        seen_(static_cast<std::size_t>(segments)),
        report_(1) {
    report_.poison(0);
  }
  [[nodiscard]] kv::keep_set view(kv::lanes const& batch, kv::side lists = kv::side::kept) const {
    return {.lanes = batch,
            .lists = lists,
            .indptr = offset_.data(),
            .indices = ordinal_.data(),
            .entry_count = seen_.data(),
            .capacity = static_cast<std::int64_t>(ordinal_.size()),
            .report = report_.data()};
  }
  /// Nothing is listed, and all of it is rubbish.
  void poison() const {
    offset_.poison();
    ordinal_.poison();
    seen_.poison();
    report_.poison(0);
  }
  [[nodiscard]] array<std::int64_t> const& offset() const { return offset_; }
  [[nodiscard]] array<int> const& ordinal() const { return ordinal_; }
  [[nodiscard]] array<int> const& seen() const { return seen_; }

 private:
  array<std::int64_t> offset_;
  array<int> ordinal_;
  array<int> seen_;
  array<kv::report> report_;
};

/// True if keep sets of host and device list the same.
inline bool same_lists(kv::keep_set const& expected, device_keep const& found) {
  auto const segments = static_cast<std::size_t>(expected.segments());
  auto const offset = found.offset().get();
  if (!std::equal(offset.begin(), offset.end(), expected.indptr, expected.indptr + segments + 1)) return false;
  auto const ordinal = found.ordinal().get();
  auto const listed = static_cast<std::size_t>(offset.back());
  return std::equal(expected.indices, expected.indices + listed, ordinal.begin());
}

}  // namespace bench::gpu
