// SPDX-License-Identifier: Apache-2.0
/* The C interface over CUDA memory, of kvpolicy::compiled_cuda: the calls of kvpolicy.h about a cache on a device.
 *
 *     kvpolicy_cuda_make(policy, &cache, stream, &state);
 *     kvpolicy_append(state, 0, tokens, position);
 *     kvpolicy_observe(state, &signals);
 *     kvpolicy_decide(state, &signals);
 *     kvpolicy_apply(state, NULL);  // no call so far has waited for the device
 *     kvpolicy_synchronize(state);  // waits, and returns what kernels found wrong with the data */
#pragma once

#include <kvpolicy/c/kvpolicy.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Makes the state of a policy for a cache in the memory of the current CUDA device. All pointers of kvpolicy_cache,
 * kvpolicy_queries and kvpolicy_signals are then of that device; the structs themselves are of the host.
 * - in: `stream` is a cudaStream_t of that device, or null: the legacy default stream. Calls run on it in their order,
 *   and return before they are done. kvpolicy_reported and kvpolicy_kept wait, once for each decision, kvpolicy_apply
 *   if `stats` is given, and kvpolicy_synchronize.
 * - what kernels find wrong with the data (a lane without room, a decision that is out of date) is returned by the next
 *   call that waits. Until then, later calls change nothing on the device.
 * - kvpolicy_decide does not return KVPOLICY_UNOBSERVED: `unobserved` of kvpolicy_reported says it.
 * - the device must be the current one in every call about the state, and when it is destroyed.
 * - fails as kvpolicy_make does, and if there is no device that can be used. */
kvpolicy_status kvpolicy_cuda_make(kvpolicy_policy const* policy, kvpolicy_cache const* cache, void* stream,
                                   kvpolicy_state** state);

#ifdef __cplusplus
}
#endif
