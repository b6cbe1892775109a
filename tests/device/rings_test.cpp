// SPDX-License-Identifier: Apache-2.0
// The device's rings of query rows, numbers that come with new entries and memories of turns against the host's.

#include "device/as_on_host.hpp"
#include "support/owned_ring.hpp"
#include "support/turn_rows.hpp"

namespace {

using namespace kvpolicy_test;

/// A table with a row for every lane of a cache.
template <class T>
kv::by_lane<T> table(mock_cache const& of, std::vector<std::remove_const_t<T>>& data, std::int64_t row) {
  return {data.data(), row * of.model().kv_heads * of.model().layers, row * of.model().kv_heads, row};
}

TEST_SUITE("device/rings") {
  TEST_CASE("rings hold the host's bytes after any series of forwards and rollbacks") {
    holds("any lanes", [] {
      mock_options shape = any_mock(6);
      shape.skew = 0;
      mock_cache cache(shape);
      int const capacity = *rc::gen::element(3, 1, 4, 32, 40);
      owned_ring expected(cache, capacity), found(cache, capacity);
      kv::host_executor host;
      device_executor device(any_numbers(), shape.seed);
      for (int forward = 0; forward < 4; ++forward) {
        fill(cache, true);
        int const rows = std::min(*rc::gen::element(1, 0, 2, 5, 7, 33, 41), shape.bound + 10);
        filled_queries queries(cache, shape.element, rows, rows + *rc::gen::element(0, 2));
        kv::ops::ring_append(host, cache.lanes(), queries.view(), expected.view());
        kv::ops::ring_append(device, cache.lanes(), queries.view(), found.view());
        device.check();
        int const sequence = *rc::gen::inRange(-1, shape.sequences + 1);  // one that there is not: nothing changes
        int const position = *rc::gen::element(0, 1, 9, 20, 60);
        kv::ops::ring_truncate(host, cache.lanes(), expected.view(), sequence, position);
        kv::ops::ring_truncate(device, cache.lanes(), found.view(), sequence, position);
        device.check();
        RC_ASSERT(expected == found);
      }
    });
  }

  TEST_CASE("numbers enter their column as on the host") {
    holds("any lanes", [] {
      mock_options const shape = any_mock();
      filled_cache cache(shape);
      auto const all = as_size(cache.lane_count() * shape.bound);
      std::vector<float> given(all);
      for (float& each : given) each = static_cast<float>(cache.random().real(2.0));
      std::vector<int> counts;
      for (int i = 0; i < cache.lane_count(); ++i) {
        counts.push_back(cache.random().below(cache.committed(cache.lane_at(i)) + 1));
      }
      auto const given_rows = table<float const>(cache, given, shape.bound);
      kv::entry_numbers new_numbers{reinterpret_cast<std::byte const*>(given.data())};
      new_numbers.element = shape.element;
      new_numbers.entry = kv::bytes_of(shape.element);
      new_numbers.sequence = given_rows.sequence * 4;
      new_numbers.layer = given_rows.layer * 4;
      new_numbers.head = given_rows.head * 4;
      new_numbers.entries = *std::min_element(counts.begin(), counts.end());
      if (shape.seed % 2 == 0) new_numbers.counts = table<int const>(cache, counts, 1);
      std::vector<int> positions(all, -1);  // of padding, of entries and of drafts
      for (std::size_t i = 0; i < all; ++i) {
        if (!cache.random().chance(30)) positions[i] = static_cast<int>(i % as_size(shape.bound)) + 3;
      }
      if (shape.seed % 3 == 0) new_numbers.position = table<int const>(cache, positions, shape.bound);
      std::vector<float> expected(all, -7), found(all, -7);
      kv::host_executor host;
      device_executor device(any_numbers(), shape.seed);
      kv::ops::append_column(host, cache.lanes(), new_numbers, table<float>(cache, expected, shape.bound));
      kv::ops::append_column(device, cache.lanes(), new_numbers, table<float>(cache, found, shape.bound));
      device.check();
      RC_ASSERT(same_bits(expected, found));  // a GPU has one NaN
    });
  }

  TEST_CASE("more numbers than entries are a fault: nothing changes until it is told") {
    mock_options shape;
    shape.sequences = 4;
    mock_cache cache(shape);
    for (int s = 0; s < 4; ++s) cache.put({s, 0, 0}, {0, 1, 2, 3});
    std::vector<float> given(20, 1.0f), column(as_size(4 * shape.bound), -7);
    std::vector<int> counts{4, 2, 5, -1};
    kv::entry_numbers new_numbers{reinterpret_cast<std::byte const*>(given.data())};
    new_numbers.entry = 4;
    new_numbers.counts = table<int const>(cache, counts, 1);
    device_executor device;
    kv::ops::append_column(device, cache.lanes(), new_numbers, table<float>(cache, column, shape.bound));
    owned_ring ring(cache, 2);
    owned_ring const empty(cache, 2);
    mock_queries queries(cache, kv::codec::f32, 1, 1);
    for (int s = 0; s < 4; ++s) queries.set_position(s, 0, 3);
    kv::ops::ring_append(device, cache.lanes(), queries.view(), ring.view());
    CHECK(error_of([&] { device.check(); }) ==
          "observe: entries (2) = 5, but a lane holds fewer entries, or the count is negative");
    CHECK(column == std::vector<float>(column.size(), -7));
    CHECK(ring == empty);
    kv::ops::ring_append(device, cache.lanes(), queries.view(), ring.view());
    device.check();
    CHECK(!(ring == empty));
  }

  TEST_CASE("memories of turns are the host's, but for the last bit of a float") {
    holds("any turns", [] {
      mock_options shape = any_mock(6);
      mock_cache cache(shape);
      std::size_t const capacity = as_size(cache.lane_count() * cache.model().group()) * as_size(shape.model.head_dim);
      std::vector<float> expected(capacity, 0.0f);
      kv::query_memory_update const how{*rc::gen::element(0.5f, 0.0f, 1.0f), any_bool(), *rc::gen::element(3, 1, 32)};
      kv::host_executor host;
      host.reserve(1 << 14);
      device_executor device(any_numbers(), shape.seed);
      device_executor other(any_numbers(), shape.seed + 1);
      for (int turn = 0; turn < 3; ++turn) {
        turn_rows rows(cache.model(), shape.sequences, 40, shape.element);
        rows.fill(cache.random(), 2.0);
        for (int s = 0; s < shape.sequences; ++s) {
          std::vector<int> const positions(as_size(cache.random().below(41)), 0);
          int const begin = cache.random().below(static_cast<int>(positions.size()) + 1);
          int const end = cache.random().between(begin, static_cast<int>(positions.size()));
          rows.turn(s, positions, begin, end, cache.random().below(40));
        }
        if (turn == 1) std::fill(expected.begin(), expected.end(), std::nanf(""));  // it lives on where keep > 0
        if (turn == 2) std::fill(expected.begin(), expected.end(), 0.0f);
        std::vector<float> found = expected, again = expected;
        auto const row = static_cast<std::int64_t>(cache.model().group() * shape.model.head_dim);
        kv::turn_queries const view = rows.view(shape.seed % 4 != 0);
        kv::ops::update_query_memory(host, cache.lanes(), view, how, table<float>(cache, expected, row));
        kv::ops::update_query_memory(device, cache.lanes(), view, how, table<float>(cache, found, row));
        kv::ops::update_query_memory(other, cache.lanes(), view, how, table<float>(cache, again, row));
        device.check();
        other.check();
        RC_ASSERT(std::memcmp(found.data(), again.data(), capacity * sizeof(float)) == 0);
        for (std::size_t i = 0; i < capacity; ++i) {
          RC_ASSERT(std::isnan(expected[i]) == std::isnan(found[i]));
          if (std::isnan(expected[i])) continue;
          RC_ASSERT(std::abs(expected[i] - found[i]) <= 1.2e-7f * std::abs(expected[i]) + 1e-12f);
        }
      }
    });
  }

  TEST_CASE("a span that is not within its rows is a fault: no memory changes") {
    mock_cache cache({});
    turn_rows rows(cache.model(), 1, 8);
    rows.fill(cache.random(), 2.0);
    std::vector<float> memory(4, 0.5f);
    device_executor device;
    auto const told = [&](int begin, int end) {
      rows.turn(0, {0, 1, 2}, begin, end);
      kv::ops::update_query_memory(device, cache.lanes(), rows.view(), kv::query_memory_update{},
                                   table<float>(cache, memory, 4));
      return error_of([&] { device.check(); });
    };
    CHECK(told(0, 4) == "observe: span (0) = 4, but it is not within the rows of its sequence");
    CHECK(told(-1, 2) == "observe: span (0) = -1, but it is not within the rows of its sequence");
    CHECK(told(2, 1) == "observe: span (0) = 1, but it is not within the rows of its sequence");
    kv::ops::refuse_spans(device, cache.lanes(), rows.view(), "decide");
    CHECK(error_of([&] { device.check(); }) == "decide: span (0) = 1, but it is not within the rows of its sequence");
    CHECK(memory == std::vector<float>(4, 0.5f));
    CHECK(told(0, 3).empty());
    CHECK(memory != std::vector<float>(4, 0.5f));
  }
}

}  // namespace
