// SPDX-License-Identifier: Apache-2.0
// Consumer 2: IntentKV. One decision a token for all lanes, over a slot map with holes, by a memory of earlier turns'
// queries.
#pragma once

#include "vocabulary/engine.hpp"

namespace vocabulary {

/// What an engine tells of a forward that ends no turn.
inline kv::turn_queries no_turn() {
  kv::turn_queries none;
  none.dims = engine::dims;
  none.heads = engine::query_heads;
  return none;
}

/// The live entries of a slot map with holes: ordinals count what is live, positions say where it stands in the text.
inline kv::cache over_slot_map(engine& model, std::vector<int> const& live_slots) {
  kv::cache cache = model.view();
  cache.where = kv::slot_map({live_slots.data(), 0, 0, 0}, engine::bound);
  cache.k.unit_stride = cache.v.unit_stride = cache.k.token_stride;
  cache.lanes.count = {model.count.data(), 0, 0, 0};        // one count and one list of positions for all lanes:
  cache.lanes.position = {model.position.data(), 0, 0, 0};  // a position is live everywhere or nowhere
  return cache;
}

}  // namespace vocabulary
