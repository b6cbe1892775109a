// SPDX-License-Identifier: Apache-2.0
// Settings under which SnapKV, H2O, StreamingLLM and TOVA were published, each named after its source.
#pragma once

#include <kvpolicy/policies/policies.hpp>

namespace KVPOLICY_NAMESPACE::policies {

// Some published variants are missing because they cannot be written as an eviction of this shape: H2O's masked
// simulation (dropped tokens may return), its evaluation over a whole known sequence (it reads future queries),
// FlexGen's variant (an argmin in a ring with fp16 sums), and the prefill-only variants of KVCache-Factory (pooled sums
// over all rows) and R-KV (a softmax without the last key).

/// SnapKV with the defaults of the authors' class: a window of 64, average pooling over 5, 320 entries.
[[nodiscard]] constexpr auto snapkv_class(int budget = 320) {
  return snapkv({.budget = budget, .score = {.window = 64, .pool = avg_pool{5}}});
}

/// SnapKV as the authors install it in a model: a window of 32, average pooling over 5, 2048 entries.
[[nodiscard]] constexpr auto snapkv_installed(int budget = 2048) {
  return snapkv({.budget = budget, .score = {.window = 32, .pool = avg_pool{5}}});
}

/// SnapKV in the authors' LongBench runs (1024, 2048 and 4096 entries): a window of 32, max pooling over 7.
[[nodiscard]] constexpr auto snapkv_longbench(int budget = 1024) {
  return snapkv({.budget = budget, .score = {.window = 32, .pool = max_pool{7}}});
}

/// SnapKV as kvpress runs it: a window of 64, average pooling over 5, and a ratio of entries to drop. kvpress takes the
/// mean over the group in another order, which makes no difference for average pooling.
[[nodiscard]] constexpr auto snapkv_kvpress(double drop = 0.5) {
  return eviction{.score = kvpolicy::snapkv{.window = 64, .pool = avg_pool{5}},
                  .budget = drop_ratio{.drop = drop, .round = rounding::kvpress}};
}

/// H2O in the authors' summarisation runs: 1024 heavy hitters, 1024 recent entries.
[[nodiscard]] constexpr auto h2o_summarisation(int heavy = 1024, int recent = 1024) {
  return h2o({.budget = heavy + recent, .score = {.heavy = heavy, .recent = recent}});
}

/// H2O in the authors' streaming runs: 4 heavy hitters (48 in the demo), 2000 recent entries. Apply with
/// `compact_rerotated`.
[[nodiscard]] constexpr auto h2o_streaming(int heavy = 4, int recent = 2000) {
  return h2o({.budget = heavy + recent, .score = {.heavy = heavy, .recent = recent}});
}

/// StreamingLLM as its authors run it: 4 sinks and 512 recent entries (2000 in the chat demo, 255 with 1 sink for
/// perplexity). Apply with `compact_rerotated`, and name it in `make_state`.
[[nodiscard]] constexpr auto streaming_llm_class(int sinks = 4, int recent = 512) {
  return streaming_llm({.budget = sinks + recent, .sinks = sinks});
}

/// TOVA as kvpress runs it: the last token is forced.
[[nodiscard]] constexpr auto tova_kvpress(int budget = 1024) {
  return tova({.budget = budget, .score = {.force_last = true}});
}

/// SnapKV with one budget for all heads of a layer (Ada-KV, Feng et al. 2024, arXiv:2407.11550). Each head is
/// guaranteed the part `floor` of an equal share.
[[nodiscard]] constexpr auto ada_snapkv(int budget = 1024, double floor = 0.2) {
  return eviction{.score = kvpolicy::snapkv{}, .budget = per_layer{budget, floor}};
}

}  // namespace KVPOLICY_NAMESPACE::policies
