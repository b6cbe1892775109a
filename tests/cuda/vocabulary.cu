// SPDX-License-Identifier: Apache-2.0
// The umbrella and the nine consumers of the vocabulary, under nvcc, as C++20 and without a warning. Compiled, not run.
#include "vocabulary/erased.hpp"
#include "vocabulary/graph_capture.hpp"
#include "vocabulary/h2o_decode.hpp"
#include "vocabulary/intent_kv.hpp"
#include "vocabulary/quest.hpp"
#include "vocabulary/snapkv_chunked.hpp"
#include "vocabulary/tensor_parallel.hpp"
#include "vocabulary/trim_kv.hpp"
#include "vocabulary/wg_kv.hpp"

static_assert(__cplusplus >= 202002L);

namespace vocabulary {

/// Instantiates what the consumers compose, so that nvcc sees the bodies too.
inline void compiled_by_nvcc(kv::host_executor& exec, engine& model) {
  prefill_in_chunks(exec, model, 50, 16);
  decode_steps(exec, model, 20, 30);
  kv::cache cache = model.view();
  any_session session(exec, kv::policies::snapkv({.budget = 16}), cache);
  auto const all =
      kv::eviction{.score = kv::intent_kv{}, .protect = kv::sinks{4} | kv::recent{8}, .budget = kv::per_lane{16}};
  auto state = kv::make_state(exec, all, cache);
  auto plan = kv::make_plan(exec, all, cache);
  kv::decide(exec, all, kv::signals{cache.lanes, kv::keys_of(cache), no_turn()}, state, plan);
  wg_kv_engine window{model};
  kv::dual_cache both = window.view(16);
  wg_kv_step(exec, both, 0);
}

}  // namespace vocabulary

void touch(kvpolicy::host_executor& exec, vocabulary::engine& model) { vocabulary::compiled_by_nvcc(exec, model); }
