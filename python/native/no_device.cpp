// SPDX-License-Identifier: Apache-2.0
// A package that was built for host memory alone.
#include "evictor.hpp"

namespace kvpolicy_python {

bool const has_device = false;

std::unique_ptr<evictor> make_device_evictor(evictor_options const&, int device, std::uintptr_t) {
  kv::expects(false, "Evictor", "device", device,
              "this package was built for host memory: pip install ./python -C cmake.define.KVPOLICY_CUDA=ON builds it "
              "for CUDA");
  return nullptr;
}

}  // namespace kvpolicy_python
