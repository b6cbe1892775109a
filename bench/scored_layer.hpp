// SPDX-License-Identifier: Apache-2.0
// One layer's scores and keys, for the verbs that visit every entry once.
#pragma once

#include "defaults.hpp"

namespace bench {

struct scored_layer {
  explicit scored_layer(int entries) : layer(entries), cache(layer.view()), values(layer.position.size()) {
    fill_scores(values, 5);
    scores = kv::contiguous_scores(cache.lanes, kv::granularity::lane, values.data(), entries);
    exec.reserve(kv::implementation<kv::ops::pool_t, kv::host>::scratch(cache.shape, entries));
  }
  layer_cache layer;
  kv::cache cache;
  std::vector<float> values;
  kv::score_view scores;
  kv::host_executor exec;
};

}  // namespace bench
