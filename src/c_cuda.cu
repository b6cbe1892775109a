// SPDX-License-Identifier: Apache-2.0
// The C interface over CUDA memory: kvpolicy_cuda.h.
#include <kvpolicy/c/kvpolicy_cuda.h>

#include <kvpolicy/cuda.cuh>

#include "c/state.hpp"

kvpolicy_status kvpolicy_cuda_make(kvpolicy_policy const* policy, kvpolicy_cache const* cache, void* stream,
                                   kvpolicy_state** state) {
  return kvpolicy_c::make_state<kvpolicy::cuda_executor>("kvpolicy_cuda_make", policy, cache, state,
                                                         static_cast<cudaStream_t>(stream));
}
