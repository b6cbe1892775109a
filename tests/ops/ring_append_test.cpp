// SPDX-License-Identifier: Apache-2.0
// ring_append against a list that forgets: what a rolled-back token left is replaced, and uncommitted rows stay out.

#include "support/owned_ring.hpp"

namespace {

using namespace kvpolicy_test;

/// The same in the obvious way.
void remember(std::deque<remembered>& ring, int capacity, mock_cache& cache, mock_queries& queries,
              kv::lane this_lane) {
  int const committed = cache.committed(this_lane);
  for (int r = 0; r < queries.rows() && committed > 0; ++r) {
    int const position = queries.position(this_lane.sequence, r);
    if (position > cache.position(this_lane, committed - 1)) break;
    while (!ring.empty() && ring.back().first >= position) ring.pop_back();
    remembered one{position, {}};
    int const group = cache.model().group();
    for (int h = 0; h < group; ++h)
      one.second.push_back(queries.row(this_lane.sequence, this_lane.layer, this_lane.head * group + h, r));
    ring.push_back(one);
    if (static_cast<int>(ring.size()) > capacity) ring.pop_front();
  }
}

}  // namespace

TEST_SUITE("ops/ring_append") {
  TEST_CASE("remembers the last rows of any series of forwards, rollbacks included, for every lane") {
    holds("ring == list that forgets", [] {
      mock_options shape = any_mock(6);
      RC_LOG() << shape << '\n';
      mock_cache cache(shape);
      int const capacity = *rc::gen::element(3, 1, 4, 32);
      owned_ring ring(cache, capacity);
      std::vector<std::deque<remembered>> expected(as_size(cache.lane_count()));
      kv::host_executor exec(*rc::gen::element(1, 3));
      int const forwards = *rc::gen::inRange(1, 6);
      for (int forward = 0; forward < forwards; ++forward) {
        fill(cache, true);  // every forward finds other counts: some lanes grew, some were rolled back
        int const rows = std::min(*rc::gen::element(1, 0, 2, 5, 7), shape.bound + 10);
        filled_queries queries(cache, shape.element, rows, rows + *rc::gen::element(0, 2));
        kv::ops::ring_append(exec, cache.lanes(), queries.view(), ring.view());
        for (int i = 0; i < cache.lane_count(); ++i) {
          auto& list = expected[as_size(i)];
          remember(list, capacity, cache, queries, cache.lane_at(i));
          RC_ASSERT(ring.content(cache.lane_at(i)) == list);
        }
      }
    });
  }

  TEST_CASE("the recorder's rows are where its columns are, sequence by sequence") {
    mock_options shape;
    shape.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
    shape.sequences = 3;
    mock_cache cache(shape);
    kv::host_executor exec;
    kv::query_ring const ring{.rows = 5};
    kv::state<kv::host_executor> state(exec, shape.model, cache.lanes());
    state.add(ring);
    kv::recorded_columns const recorded = state.columns_from(0);
    kv::recent_queries const seen = ring.view(recorded);
    for (int s = 0; s < 3; ++s) {
      for (int layer = 0; layer < 2; ++layer) {
        for (int head = 0; head < 4; ++head) {
          std::byte const* const of_lane = recorded[0].rows.row({s, layer, head / 2});
          CHECK(seen.at({s, layer, head / 2}, head, 3) == of_lane + (head % 2 * 5 + 3) * 8 * 4);
        }
      }
    }
  }

  TEST_CASE("refuses rows of another head size") {
    mock_cache cache({});
    owned_ring ring(cache, 2);
    mock_queries queries(cache, kv::codec::f32, 1, 1);
    kv::query_view wide = queries.view();
    wide.dims = 8;
    kv::host_executor exec;
    CHECK(error_of([&] { kv::ops::ring_append(exec, cache.lanes(), wide, ring.view()); }) ==
          "ring_append: queries.dims = 8, but a ring keeps rows of one head size");
  }
}
