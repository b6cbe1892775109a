// ring_append against a list that forgets: what a rolled-back token left is replaced, and uncommitted rows stay out.

#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <kvpolicy/kvpolicy.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/holds.hpp"
#include "support/mock_batch.hpp"
#include "support/mock_cache.hpp"
#include "support/mock_options.hpp"

namespace {

using namespace kvpolicy_test;

/// One remembered row: its position, and its numbers for each query head of the group.
using remembered = std::pair<int, reference::matrix>;

/// A ring for every lane.
class owned_ring {
 public:
  owned_ring(mock_cache const& of, int capacity)
      : model_(of.model()),
        capacity_(capacity),
        rows_(static_cast<std::size_t>(of.lane_count() * row_floats())),
        position_(static_cast<std::size_t>(of.lane_count() * capacity)),
        cursor_(static_cast<std::size_t>(of.lane_count() * 2)) {}
  owned_ring(owned_ring const&) = delete;
  owned_ring& operator=(owned_ring const&) = delete;

  [[nodiscard]] kv::query_ring_view view() {
    auto const table = [&](auto* data, std::int64_t row) {
      return kv::by_lane<std::remove_pointer_t<decltype(data)>>{data, row * model_.kv_heads * model_.layers,
                                                                row * model_.kv_heads, row};
    };
    return {capacity_,
            model_.group(),
            model_.head_dim,
            table(rows_.data(), row_floats()),
            table(position_.data(), capacity_),
            table(cursor_.data(), 2)};
  }

  [[nodiscard]] std::deque<remembered> content(kv::lane this_lane) {
    std::deque<remembered> all;
    auto const ring = view();
    for (int r = 0; r < ring.cursor.row(this_lane)[1]; ++r) {
      int const at = (ring.cursor.row(this_lane)[0] + r) % capacity_;
      remembered one{ring.position.row(this_lane)[at], {}};
      for (int h = 0; h < ring.group; ++h) {
        float const* const row = ring.rows.row(this_lane) + (h * capacity_ + at) * ring.dims;
        one.second.emplace_back(row, row + ring.dims);
      }
      all.push_back(one);
    }
    return all;
  }

 private:
  [[nodiscard]] int row_floats() const { return capacity_ * model_.group() * model_.head_dim; }
  kv::shape model_;
  int capacity_;
  std::vector<float> rows_;
  std::vector<int> position_, cursor_;
};

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
      std::vector<std::deque<remembered>> expected(static_cast<std::size_t>(cache.lane_count()));
      kv::host_executor exec(*rc::gen::element(1, 3));
      int const forwards = *rc::gen::inRange(1, 6);
      for (int forward = 0; forward < forwards; ++forward) {
        fill(cache, true);  // every forward finds other counts: some lanes grew, some were rolled back
        int const rows = std::min(*rc::gen::element(1, 0, 2, 5, 7), shape.bound + 10);
        mock_queries queries(cache, shape.element, rows, rows + *rc::gen::element(0, 2));
        fill(queries, cache, content::smooth);
        kv::ops::ring_append(exec, cache.lanes(), queries.view(), ring.view());
        for (int i = 0; i < cache.lane_count(); ++i) {
          auto& list = expected[static_cast<std::size_t>(i)];
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
    CHECK_THROWS_WITH_AS(kv::ops::ring_append(exec, cache.lanes(), wide, ring.view()),
                         "ring_append: queries.dims = 8, but a ring keeps rows of one head size", kv::invalid_argument);
  }
}
