// SPDX-License-Identifier: Apache-2.0
// A prompt that was read in one forward: all lanes have the same entries, and each entry has a query row.
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

/// Any cache of a prompt about which whole layers decide: not latent, no ring, and the same entries in all lanes.
inline mock_options any_prompt_shape() {
  mock_options shape = any_mock();
  shape.shared_entries = true;
  bool const latent = shape.memory == arrangement::latent || shape.memory == arrangement::latent_view;
  if (shape.memory == arrangement::one_pool || latent) shape.memory = arrangement::nhd;
  if (shape.where == kv::locating::ring) shape.where = kv::locating::identity;
  shape.model.value_dim = 0;
  shape.rows = content::smooth;
  return shape;
}

/// The cache of one prompt with holes in its positions, and the query rows of all of its entries.
struct whole_prompt {
  explicit whole_prompt(mock_options of)
      : shape(with_one_sequence(of)),
        cache(shape),
        positions(cache.random().subset(shape.bound, cache.random().below(shape.bound + 1))),
        count(static_cast<int>(positions.size())),
        queries(cache, *rc::gen::element(kv::codec::f32, kv::codec::bf16), std::max(1, count), std::max(1, count)) {
    RC_LOG() << shape << '\n';
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), positions);
    fill(queries, cache, content::smooth);
    for (int r = 0; r < count; ++r) queries.set_position(0, r, positions[as_size(r)]);
  }

  mock_options shape;
  mock_cache cache;
  std::vector<int> positions;  ///< of the entries
  int count;
  mock_queries queries;

 private:
  static mock_options with_one_sequence(mock_options of) {
    of.sequences = 1;
    return of;
  }
};

}  // namespace kvpolicy_test
