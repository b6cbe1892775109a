// The CUDA executor: a stream, a memory resource, scratch, and a word for faults.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/ops/cuda/block.cuh>
#include <kvpolicy/ops/cuda/faults.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// A call of CUDA that failed: what was called, and CUDA's code for why.
class cuda_error : public std::runtime_error {
 public:
  cuda_error(char const* call, cudaError_t code)
      : std::runtime_error(std::string(call) + ": " + cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")"),
        code_(code) {}
  [[nodiscard]] cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

namespace detail {

inline void cuda_call(char const* call, cudaError_t code) {
  if (code != cudaSuccess) throw cuda_error(call, code);
}

[[nodiscard]] inline int device_attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  cuda_call("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&value, which, device));
  return value;
}

}  // namespace detail

/// Where an executor has its device memory from, in the order of a stream. An engine with an allocator of its own (a
/// caching one, RMM, a pool that it made at start) derives from it.
class device_memory {
 public:
  device_memory() = default;
  device_memory(device_memory const&) = delete;
  device_memory& operator=(device_memory const&) = delete;
  virtual ~device_memory() = default;
  /// `bytes` of device memory, aligned to 256. Throws if there are not so many.
  [[nodiscard]] virtual void* allocate(std::size_t bytes, cudaStream_t stream) = 0;
  virtual void deallocate(void* what, std::size_t bytes, cudaStream_t stream) noexcept = 0;
};

/// The current device's own pool. The executor's memory unless it is given another.
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
  /// The one that all executors share. It holds nothing itself.
  [[nodiscard]] static device_pool& shared() {
    static device_pool pool;
    return pool;
  }
};

/// Runs verbs on a stream of the current device, in order. A call launches kernels and returns: it waits for nothing,
/// allocates nothing after plans and states are made, and may be captured into a graph. Counts, keep sets and reports
/// stay on the device; `fetch` and `check` wait.
///
///     kv::cuda_executor exec(stream);
///     ...                                 // make_plan, decide, apply
///     exec.check();                       // throws what the device found wrong with its data
///
/// What host verbs throw about data (a stale plan, a full lane) is noted on the device: the verbs that follow change
/// nothing, until `check()` throws it and clears the note. What can be told from the host is thrown at once, as there.
class cuda_executor {
 public:
  using backend = cuda;

  /// Memory of this executor's device: `count` values, zeroed. Freed in the order of the stream, which must outlive it.
  template <class T>
  class buffer {
   public:
    buffer(cuda_executor& exec, std::size_t count) : count_(count), stream_(exec.stream_), memory_(exec.memory_) {
      if (count_ == 0) return;
      data_ = static_cast<T*>(memory_->allocate(count_ * sizeof(T), stream_));
      detail::cuda_call("cudaMemsetAsync", cudaMemsetAsync(data_, 0, count_ * sizeof(T), stream_));
    }
    buffer(buffer&& from) noexcept
        : data_(std::exchange(from.data_, nullptr)),
          count_(std::exchange(from.count_, 0)),
          stream_(from.stream_),
          memory_(from.memory_) {}
    buffer& operator=(buffer&& from) noexcept {
      std::swap(data_, from.data_);
      std::swap(count_, from.count_);
      std::swap(stream_, from.stream_);
      std::swap(memory_, from.memory_);
      return *this;
    }
    ~buffer() {
      if (data_ != nullptr) memory_->deallocate(data_, count_ * sizeof(T), stream_);
    }
    [[nodiscard]] T* data() { return data_; }
    [[nodiscard]] T const* data() const { return data_; }
    [[nodiscard]] std::size_t size() const { return count_; }

   private:
    T* data_ = nullptr;
    std::size_t count_ = 0;
    cudaStream_t stream_;
    device_memory* memory_;
  };

  /// On `stream` of the current device; the legacy default stream unless told otherwise.
  ///
  /// - throws: `invalid_argument` if the device is older than compute capability 8.0 or the stream is another device's,
  ///   `cuda_error` if there is no device.
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
    faults_ = static_cast<std::uint64_t*>(memory_->allocate(words_bytes, stream_));
    clear_faults();
    detail::cuda_call("cudaMemsetAsync", cudaMemsetAsync(tickets(), 0, words_bytes - sizeof(std::uint64_t), stream_));
  }
  cuda_executor(cuda_executor const&) = delete;
  cuda_executor& operator=(cuda_executor const&) = delete;
  ~cuda_executor() {
    for (auto const& [what, bytes] : outgrown_) memory_->deallocate(what, bytes, stream_);
    if (scratch_ != nullptr) memory_->deallocate(scratch_, reserved_, stream_);
    if (faults_ != nullptr) memory_->deallocate(faults_, words_bytes, stream_);
  }

  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] int capability() const { return capability_; }
  [[nodiscard]] launch_config const& config() const { return config_; }
  /// Launch numbers to try instead of those of the device. No result depends on them.
  ///
  /// - throws: `invalid_argument` if threads are no multiple of 32 up to 512, or shared memory is less than 48 KiB or
  ///   more than a block can have.
  void set_launch_config(launch_config const& numbers) {
    detail::check_launch_config("set_launch_config", numbers, most_shared_);
    config_ = numbers;
  }

  /// Makes scratch at least `bytes`. Called by make_plan and make_state; decisions never grow it. Scratch that was too
  /// small stays as long as the executor: graphs that were captured before work in it.
  void reserve(std::size_t bytes) {
    if (bytes <= reserved_) return;
    outgrown_.reserve(outgrown_.size() + 1);
    auto* const larger = static_cast<std::byte*>(memory_->allocate(bytes, stream_));
    if (scratch_ != nullptr) outgrown_.emplace_back(scratch_, reserved_);
    scratch_ = larger;
    reserved_ = bytes;
  }
  [[nodiscard]] std::size_t reserved() const { return reserved_; }
  [[nodiscard]] std::byte* scratch() { return scratch_; }
  [[nodiscard]] device_error faults() { return {faults_}; }
  [[nodiscard]] int* tickets() { return reinterpret_cast<int*>(faults_ + 1); }

  /// Copies bytes in the order of the stream, between host and device or within either.
  void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
    if (bytes == 0) return;
    detail::cuda_call("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  }

  /// Values of the device, after everything before has been done. Waits.
  template <class T>
  void fetch(T* to, T const* from, std::size_t count) {
    copy(reinterpret_cast<std::byte*>(to), reinterpret_cast<std::byte const*>(from), count * sizeof(T));
    synchronize();
  }

  /// Waits for everything before.
  void synchronize() { detail::cuda_call("cudaStreamSynchronize", cudaStreamSynchronize(stream_)); }

  /// Waits, and throws `invalid_argument` if the device found something wrong with its data since the last check.
  void check() {
    std::uint64_t word = 0;
    fetch(&word, faults_, 1);
    if (word == device_error::nothing) return;
    clear_faults();
    detail::throw_fault(word);
  }

  /// True if kernels can read what is there: device memory, or memory that both share.
  [[nodiscard]] bool reaches(void const* what) const {
    cudaPointerAttributes about{};
    detail::cuda_call("cudaPointerGetAttributes", cudaPointerGetAttributes(&about, what));
    return about.type != cudaMemoryTypeUnregistered || pageable_;
  }

  template <class Kernel>
  void launch(launch_shape const& shape, Kernel const& kernel) {
    static_assert(sizeof(Kernel) <= 4096, "kvpolicy: a kernel's arguments have 4 KiB");
    if (shape.blocks <= 0) return;
    auto* const code = &detail::run_kernel<Kernel, __CUDA_ARCH_LIST__>;
    constexpr std::size_t without_asking = 48 * 1024;
    if (shape.shared > without_asking) {  // always the most: executors of other threads launch the same kernel
      detail::cuda_call("cudaFuncSetAttribute",
                        cudaFuncSetAttribute(code, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_));
    }
    void* arguments[] = {const_cast<Kernel*>(&kernel)};
    detail::cuda_call("cudaLaunchKernel",
                      cudaLaunchKernel(reinterpret_cast<void const*>(code), dim3(static_cast<unsigned>(shape.blocks)),
                                       dim3(static_cast<unsigned>(shape.threads)), arguments, shape.shared, stream_));
  }

 private:
  static constexpr std::size_t words_bytes = 256;  ///< the fault word and the tickets behind it

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
  int most_shared_ = 0;  ///< bytes that a block can have
  bool pageable_ = false;
  launch_config config_{};
  std::byte* scratch_ = nullptr;
  std::size_t reserved_ = 0;
  std::vector<std::pair<std::byte*, std::size_t>> outgrown_;
  std::uint64_t* faults_ = nullptr;
};
static_assert(kernel_executor<cuda_executor>);

}  // namespace KVPOLICY_NAMESPACE
