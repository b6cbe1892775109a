// SPDX-License-Identifier: Apache-2.0
// The published evictions of the demo's table. Each is a composition that a user could write.
#include "engine.hpp"

namespace demo {

/// A fact of the recall task has 17 bytes, so pools have a width of 15; a question has 10 bytes, so windows have 16,
/// and so has the tail that stands for IntentKV's actionable span.
std::vector<contender> published_evictions() {
  using tinylm::when;
  kv::snapkv const window{.window = 16, .pool = kv::max_pool{15}};
  return {
      contestant("streaming_llm", when::every_forward, [](int n) { return kv::policies::streaming_llm({.budget = n}); })
          .titled("StreamingLLM", "after every token"),
      contestant("snapkv", when::after_prefill,
                 [=](int n) { return kv::policies::snapkv({.budget = n, .score = window}); })
          .titled("SnapKV", "once, after the prompt"),
      contestant("h2o", when::every_forward, [](int n) { return kv::policies::h2o({.budget = n}); })
          .titled("H2O", "after every token"),
      contestant_in_place("intent_kv",
                          [](int n, kv::residual_head const& trained) {
                            kv::intent_kv const score{
                                .mode = kv::intent_mode::learnable, .tail = 16, .residual = trained};
                            return kv::policies::intent_kv({.budget = n, .score = score});
                          })
          .titled("IntentKV", "the prompt as one turn, in place"),
  };
}

}  // namespace demo
