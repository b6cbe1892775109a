// SPDX-License-Identifier: Apache-2.0
// The CUDA executor: a stream, a memory resource, scratch, and the recorded fault.
#pragma once

#include <cuda_runtime.h>
#if defined(KVPOLICY_NVTX)
#include <nvtx3/nvToolsExt.h>
#endif

#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/cuda/run/faults.hpp>
#include <kvpolicy/ops/cuda/run/launch.cuh>
#include <kvpolicy/ops/cuda/select/numbers.cuh>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// The memory resource of an executor. All calls are ordered on a stream. An engine that has an allocator of its own (a
/// caching one, RMM, a pool allocated at start) derives from it.
class device_memory {
 public:
  device_memory() = default;
  device_memory(device_memory const&) = delete;
  device_memory& operator=(device_memory const&) = delete;
  virtual ~device_memory() = default;
  /// Returns `bytes` of device memory, aligned to 256 bytes. Throws if there is not enough.
  [[nodiscard]] virtual void* allocate(std::size_t bytes, cudaStream_t stream) = 0;
  virtual void deallocate(void* what, std::size_t bytes, cudaStream_t stream) noexcept = 0;
};

/// The current device's default memory pool (cudaMallocAsync). Executors use it unless they are given another resource.
class device_pool final : public device_memory {
 public:
  [[nodiscard]] void* allocate(std::size_t bytes, cudaStream_t stream) override {
    void* got = nullptr;
    detail::cuda_call("cudaMallocAsync", cudaMallocAsync(&got, bytes, stream));
    return got;
  }
  void deallocate(void* what, std::size_t, cudaStream_t stream) noexcept override {
    static_cast<void>(cudaFreeAsync(what, stream));
  }
  /// The instance that all executors share. It has no state.
  [[nodiscard]] static device_pool& shared() {
    static device_pool pool;
    return pool;
  }
};

/// Runs verbs on a stream of the current device, in order. A call launches kernels and returns without waiting. Once
/// plans and states are made, no call allocates, and calls can be captured into a CUDA graph. Counts, keep sets and
/// reports stay on the device. Only `fetch`, `check` and `synchronize` wait.
///
///     kv::cuda_executor exec(stream);
///     ...                                 // make_plan, decide, apply
///     exec.check();                       // throws if a kernel found an error in its data
///
/// Errors that only the data in memory shows (a stale plan, a full lane) make a host verb throw; a kernel records them
/// as a fault instead. Verbs that follow then change nothing, until `check()` throws the error and clears it. Errors
/// that the arguments show are thrown at once, as on the host.
class cuda_executor : public serves_one_thread {
 public:
  using backend = cuda;

#if defined(KVPOLICY_NVTX)
  /// With KVPOLICY_NVTX, each verb is a range of its name in NVIDIA's profilers.
  class nvtx_range {
   public:
    explicit nvtx_range(char const* verb) { nvtxRangePushA(verb); }
    ~nvtx_range() { nvtxRangePop(); }
    nvtx_range(nvtx_range const&) = delete;
    nvtx_range& operator=(nvtx_range const&) = delete;
  };
  [[nodiscard]] static nvtx_range range(char const* verb) { return nvtx_range(verb); }
#endif

  /// A buffer of `count` zeroed values in the memory of this executor's device. It is freed in the order of the stream,
  /// which must outlive it.
  template <class T>
  class buffer {
   public:
    buffer(cuda_executor& exec, std::size_t count) : data_(nullptr, {count, exec.stream_, exec.memory_}) {
      if (count == 0) return;
      data_.reset(static_cast<T*>(exec.memory_->allocate(count * sizeof(T), exec.stream_)));
      detail::cuda_call("cudaMemsetAsync", cudaMemsetAsync(data(), 0, count * sizeof(T), exec.stream_));
    }
    [[nodiscard]] T* data() { return data_.get(); }
    [[nodiscard]] T const* data() const { return data_.get(); }
    [[nodiscard]] std::size_t size() const { return data_ != nullptr ? data_.get_deleter().count : 0; }

   private:
    struct release {
      std::size_t count;
      cudaStream_t stream;
      device_memory* memory;
      void operator()(T* what) const noexcept { memory->deallocate(what, count * sizeof(T), stream); }
    };
    std::unique_ptr<T, release> data_;
  };

  /// Makes an executor on `stream` of the current device. The default is the legacy default stream.
  ///
  /// - throws: `invalid_argument` if the device is older than compute capability 8.0 or the stream is of another
  ///   device, `cuda_error` if there is no device.
  explicit cuda_executor(cudaStream_t stream = nullptr) : cuda_executor(stream, device_pool::shared()) {}
  /// As above, with memory from `memory`, which must outlive the executor and its buffers.
  cuda_executor(cudaStream_t stream, device_memory& memory) : stream_(stream), memory_(&memory) {
    detail::cuda_call("cudaGetDevice", cudaGetDevice(&device_));
    int const major = detail::device_attribute(cudaDevAttrComputeCapabilityMajor, device_);
    int const minor = detail::device_attribute(cudaDevAttrComputeCapabilityMinor, device_);
    capability_ = 10 * major + minor;
    expects(
        capability_ >= 80, "cuda_executor", "compute capability",
        [&] { return std::to_string(major) + "." + std::to_string(minor); }, "8.0 is the oldest that is supported");
    check_stream();
    config_ = launch_config_for(capability_, detail::device_attribute(cudaDevAttrMultiProcessorCount, device_));
    most_shared_ = detail::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device_);
    if (config_.shared_bytes > most_shared_) config_.shared_bytes = most_shared_;
    clusters_ = detail::largest_cluster<__CUDA_ARCH_LIST__>(capability_, most_shared_);
    opted_in_.reserve(64);
    faults_ = static_cast<std::uint64_t*>(memory_->allocate(words_bytes, stream_));
    clear_faults();
    detail::cuda_call("cudaMemsetAsync", cudaMemsetAsync(tickets(), 0, words_bytes - sizeof(std::uint64_t), stream_));
  }
  ~cuda_executor() {
    for (auto const& [what, bytes] : outgrown_) memory_->deallocate(what, bytes, stream_);
    if (scratch_ != nullptr) memory_->deallocate(scratch_, reserved_, stream_);
    if (faults_ != nullptr) memory_->deallocate(faults_, words_bytes, stream_);
  }

  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] int capability() const { return capability_; }
  [[nodiscard]] launch_config const& config() const { return config_; }
  /// The threads of blocks, for which kernels are compiled. An executor that derives from this one may hide this
  /// function by one with other numbers; the kernels that it launches are then compiled for those.
  [[nodiscard]] static constexpr auto threads() {
    return block_threads<static_threads<512>, static_threads<256>, static_threads<256>, static_threads<128>>{};
  }
  /// The most blocks of a cluster: what the device has, and 1 where kernels are compiled for none above 8.9.
  [[nodiscard]] int clusters() const { return clusters_; }
  /// Replaces the launch numbers of the device. No result depends on them.
  ///
  /// - throws: `invalid_argument` if a count is below 1, or if shared memory is below 48 KiB or above the most that a
  ///   block can have.
  void set_launch_config(launch_config const& numbers) {
    detail::check_launch_config("set_launch_config", numbers, most_shared_);
    config_ = numbers;
  }

  /// Grows scratch to at least `bytes`. `make_plan` and `make_state` call it; decisions never do. A scratch buffer that
  /// was replaced is freed with the executor, because captured graphs may still use it.
  void reserve(std::size_t bytes) {
    detail::sole_use const in_use("reserve", *this);
    if (bytes <= reserved_) return;
    outgrown_.reserve(outgrown_.size() + 1);
    auto* const larger = static_cast<std::byte*>(memory_->allocate(bytes, stream_));
    if (scratch_ != nullptr) outgrown_.emplace_back(scratch_, reserved_);
    scratch_ = larger;
    reserved_ = bytes;
  }
  [[nodiscard]] std::size_t reserved() const { return reserved_; }
  /// Device memory that a verb may use until the next verb of the stream.
  [[nodiscard]] std::byte* scratch() { return scratch_; }
  [[nodiscard]] device_error faults() { return {faults_}; }
  [[nodiscard]] int* tickets() { return reinterpret_cast<int*>(faults_ + 1); }

  /// Copies bytes in the order of the stream, between host and device or within either.
  void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
    if (bytes == 0) return;
    detail::cuda_call("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  }

  /// Copies values from the device to the host after all earlier work of the stream. Waits.
  template <class T>
  void fetch(T* to, T const* from, std::size_t count) {
    copy(reinterpret_cast<std::byte*>(to), reinterpret_cast<std::byte const*>(from), count * sizeof(T));
    synchronize();
  }

  /// Waits for all earlier work of the stream.
  void synchronize() { detail::cuda_call("cudaStreamSynchronize", cudaStreamSynchronize(stream_)); }

  /// Waits, and throws `invalid_argument` if a kernel has recorded a fault since the last check. Clears the fault.
  void check() {
    std::uint64_t word = 0;
    fetch(&word, faults_, 1);
    if (word == device_error::nothing) return;
    clear_faults();
    detail::throw_fault(word);
  }

  /// True if kernels can read memory at this address: device memory, managed or pinned memory, or any memory where the
  /// device can access pageable memory.
  [[nodiscard]] bool reaches(void const* what) const {
    cudaPointerAttributes about{};
    detail::cuda_call("cudaPointerGetAttributes", cudaPointerGetAttributes(&about, what));
    return about.type != cudaMemoryTypeUnregistered || pageable_;
  }

  /// Launches a kernel on the stream, and returns without waiting.
  ///
  /// - throws: `invalid_argument` if the device cannot launch this grid, `cuda_error` if the launch fails.
  template <class Threads, class Kernel>
  void launch(launch_shape<Threads> const& shape, Kernel const& kernel) {
    static_assert(sizeof(Kernel) <= 4096, "kvpolicy: a kernel's arguments have 4 KiB");
    if (shape.blocks <= 0) return;
    bool const hopper = detail::compiled_for_hopper<__CUDA_ARCH_LIST__>(capability_);
    detail::check_launch(shape, {hopper ? clusters_ : 1, static_cast<std::size_t>(most_shared_)});
    bool const overlaps = hopper && config_.overlapped_launches != 0;
    detail::launch_on<__CUDA_ARCH_LIST__>({stream_, most_shared_, overlaps, opted_in_}, shape, kernel);
  }

  /// Selects by cub::DeviceSelect, in two launches; see `kernel_executor`. `count` is below 2^31.
  template <class Number>
  void select_numbers(std::int64_t count, Number const& number, selected_numbers to, std::byte* storage) {
    if (count > 0) detail::cuda_call("cub::DeviceSelect::If", detail::select_on(stream_, count, number, to, storage));
  }

 private:
  static constexpr std::size_t words_bytes = 256;  ///< the recorded fault, and the tickets behind it

  void clear_faults() {
    detail::cuda_call("cudaMemsetAsync", cudaMemsetAsync(faults_, 0xFF, sizeof(std::uint64_t), stream_));
  }
  void check_stream() {
    pageable_ = detail::device_attribute(cudaDevAttrPageableMemoryAccess, device_) != 0;
#if CUDART_VERSION >= 12080
    int of_stream = device_;
    if (stream_ != nullptr && stream_ != cudaStreamLegacy && stream_ != cudaStreamPerThread) {
      detail::cuda_call("cudaStreamGetDevice", cudaStreamGetDevice(stream_, &of_stream));
    }
    expects(of_stream == device_, "cuda_executor", "stream", "of device " + std::to_string(of_stream),
            [&] { return "the current device is " + std::to_string(device_); });
#endif
  }

  cudaStream_t stream_;
  device_memory* memory_;
  int device_ = 0;
  int capability_ = 0;
  int most_shared_ = 0;  ///< the most bytes of shared memory that a block can have
  int clusters_ = 1;
  bool pageable_ = false;
  launch_config config_{};
  std::byte* scratch_ = nullptr;
  std::size_t reserved_ = 0;
  std::vector<std::pair<std::byte*, std::size_t>> outgrown_;
  std::vector<void const*> opted_in_;  ///< see launch_target
  std::uint64_t* faults_ = nullptr;
};
static_assert(kernel_executor<cuda_executor>);

}  // namespace KVPOLICY_NAMESPACE
