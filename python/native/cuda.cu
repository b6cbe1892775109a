// SPDX-License-Identifier: Apache-2.0
// The evictor of CUDA memory.
#include <kvpolicy/cuda.cuh>

#include "evictor_on.hpp"

namespace kvpolicy_python {
namespace {

/// Makes a device the current one of the calling thread, until it ends.
class current_device {
 public:
  explicit current_device(int device) {
    kv::detail::cuda_call("cudaGetDevice", cudaGetDevice(&before_));
    kv::detail::cuda_call("cudaSetDevice", cudaSetDevice(device));
  }
  current_device(current_device&& from) noexcept : before_(std::exchange(from.before_, -1)) {}
  current_device& operator=(current_device&&) = delete;
  ~current_device() {
    if (before_ >= 0) static_cast<void>(cudaSetDevice(before_));
  }

 private:
  int before_ = -1;
};

}  // namespace

bool const has_device = true;

std::unique_ptr<evictor> make_device_evictor(evictor_options const& from, int device, std::uintptr_t stream) {
  int devices = 0;
  static_cast<void>(cudaGetDeviceCount(&devices));  // no driver: no device
  static_cast<void>(cudaGetLastError());
  kv::expects(device >= 0 && device < devices, "Evictor", "device", device,
              [&] { return "there are " + std::to_string(devices) + " CUDA devices"; });
  current_device const entered(device);
  auto const enter = [device] { return current_device(device); };
  return std::make_unique<evictor_on<kv::cuda_executor, std::remove_const_t<decltype(enter)>>>(
      from, "cuda:" + std::to_string(device), enter, reinterpret_cast<cudaStream_t>(stream));
}

}  // namespace kvpolicy_python
