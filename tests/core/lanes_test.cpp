// SPDX-License-Identifier: Apache-2.0
// Lanes, segments, locators and scores: which number stands for whom, over every small batch.

#include "support/test.hpp"

namespace kv = kvpolicy;

namespace {

/// Calls visit(lanes, granularity) for small batches and parts of their layers.
template <class Visit>
void for_every_batch(Visit const& visit) {
  for (int sequences : {1, 3}) {
    for (int begin : {0, 2}) {
      for (int layers : {1, 4}) {
        for (int heads : {1, 2, 5}) {
          kv::lanes const batch{
              .sequences = sequences, .layer_begin = begin, .layer_end = begin + layers, .heads = heads, .capacity = 7};
          for (auto const decides : {kv::granularity::lane, kv::granularity::layer, kv::granularity::sequence}) {
            visit(batch, decides);
          }
        }
      }
    }
  }
}

/// The segment of a lane, counted out.
int counted_segment(kv::lanes const& batch, kv::granularity decides, kv::lane one) {
  int segment = -1;
  for (int s = 0; s <= one.sequence; ++s) {
    for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) {
      for (int head = 0; head < batch.heads; ++head) {
        bool const first_of_layer = head == 0;
        bool const first_of_token = first_of_layer && layer == batch.layer_begin;
        if (decides == kv::granularity::lane || (decides == kv::granularity::layer && first_of_layer) ||
            (decides == kv::granularity::sequence && first_of_token)) {
          ++segment;
        }
        if (kv::lane{s, layer, head} == one) return segment;
      }
    }
  }
  return segment;
}

}  // namespace

TEST_SUITE("core/lanes") {
  TEST_CASE("lanes are numbered sequence by sequence, then layer, then head") {
    for_every_batch([](kv::lanes const& batch, kv::granularity) {
      int i = 0;
      for (int s = 0; s < batch.sequences; ++s) {
        for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) {
          for (int head = 0; head < batch.heads; ++head, ++i) {
            CHECK(batch.at(i) == kv::lane{s, layer, head});
            CHECK(batch.index({s, layer, head}) == i);
          }
        }
      }
      CHECK(batch.size() == i);
      CHECK(batch.layers() == batch.layer_end - batch.layer_begin);
    });
  }

  TEST_CASE("a lane's segment is its own, its layer's or its sequence's, and its first lane stands for it") {
    for_every_batch([](kv::lanes const& batch, kv::granularity decides) {
      std::vector<int> first(static_cast<std::size_t>(batch.size()), -1);
      for (int i = batch.size() - 1; i >= 0; --i) {
        int const segment = counted_segment(batch, decides, batch.at(i));
        CHECK(kv::segment_of(batch, decides, i) == segment);
        first[static_cast<std::size_t>(segment)] = i;
      }
      int const segments = counted_segment(batch, decides, batch.at(batch.size() - 1)) + 1;
      CHECK(kv::segments(batch, decides) == segments);
      for (int s = 0; s < segments; ++s) CHECK(kv::first_lane(batch, decides, s) == first[static_cast<std::size_t>(s)]);
    });
  }

  TEST_CASE("scores side by side: a row for every segment, in their order, from the first float on") {
    for_every_batch([](kv::lanes const& batch, kv::granularity decides) {
      std::vector<float> memory(static_cast<std::size_t>(batch.size() * 8));
      kv::score_view const scores = kv::contiguous_scores(batch, decides, memory.data(), 8);
      for (int s = 0; s < scores.segments(); ++s) CHECK(scores.row(s) == memory.data() + 8 * s);
      for (int i = 0; i < batch.size(); ++i) {
        CHECK(scores.rows.row(batch.at(i)) == memory.data() + 8 * counted_segment(batch, decides, batch.at(i)));
      }
      CHECK(scores.spare == nullptr);
    });
  }

  TEST_CASE("a plan has spare rows only for a scorer that asks for them") {
    kv::host_executor exec;
    int const counts[] = {5};
    kv::lanes const batch{.layer_end = 2, .heads = 3, .capacity = 9, .count = {const_cast<int*>(counts)}};
    kv::plan<kv::host_executor> const plain(exec, batch, kv::granularity::lane);
    CHECK(plain.spare_rows() == 0);
    CHECK(plain.entry_bytes() == 0);
    CHECK(kv::plan<kv::host_executor>(exec, batch, kv::granularity::lane, 3).spare_rows() == 3);
  }

  TEST_CASE("some layers are the same lanes, fewer of them") {
    int drafts[2] = {1, 2};
    int counts[] = {5, 6};
    kv::lanes const all{.sequences = 2,
                        .layer_begin = 0,
                        .layer_end = 4,
                        .heads = 3,
                        .capacity = 9,
                        .count = {counts, 1, 0, 0},
                        .in_flight = drafts};
    kv::lanes const some = all.layers_only(1, 3);
    CHECK(some.layers() == 2);
    CHECK(some.size() == 12);
    CHECK(some.at(0) == kv::lane{0, 1, 0});
    CHECK(some.at(11) == kv::lane{1, 2, 2});
    CHECK(some.count.data == counts);
    CHECK(some.capacity == 9);
    CHECK(some.committed({0, 1, 0}) == 4);
    CHECK(some.committed({1, 2, 2}) == 4);
    kv::lanes none = some;
    none.in_flight = nullptr;
    CHECK(none.committed({1, 2, 2}) == 6);
  }

  TEST_CASE("a table's row is found by its strides, and a stride of 0 shares it") {
    int table[100] = {};
    kv::by_lane<int> const rows{table, 50, 20, 3};
    CHECK(rows.row({1, 2, 3}) == table + 50 + 40 + 9);
    CHECK(rows.row({0, 0, 0}) == table);
    CHECK(kv::by_lane<int>{table, 50, 0, 0}.row({1, 2, 3}) == table + 50);
  }
}

TEST_SUITE("core/cache") {
  TEST_CASE("each locator finds an entry's place") {
    int const table[] = {4, 9, 2, 7, 3, 8, 1, 6};
    kv::lane const second{1, 0, 0};
    CHECK(kv::identity_map(16, 2).at(second, 5) == kv::place{1, 5});
    CHECK(kv::identity_map(16).units == 1);
    CHECK(kv::identity_map(16).unit_tokens == 16);
    CHECK(kv::slot_map({table, 4, 0, 0}, 10).at(second, 1) == kv::place{8, 0});
    CHECK(kv::slot_map({table, 4, 0, 0}, 10).unit_tokens == 1);
    CHECK(kv::block_table({table, 4, 0, 0}, 3, 10).at(second, 5) == kv::place{8, 2});
    CHECK(kv::block_table({table, 4, 0, 0}, 3, 10).at(second, 6) == kv::place{1, 0});
    kv::locator const ring{kv::locating::ring, {table, 1, 0, 0}, 10, 2};
    CHECK(ring.at(second, 0) == kv::place{1, 9});
    CHECK(ring.at(second, 1) == kv::place{1, 0});
    CHECK(ring.at(second, 3) == kv::place{1, 2});
    int const begins[] = {0, 5};
    kv::locator const batch = kv::csr_pages({table}, {begins, 1, 0, 0}, 2, 10);
    CHECK(batch.at(second, 0) == kv::place{8, 0});
    CHECK(batch.at(second, 3) == kv::place{1, 1});
    CHECK(batch.at({0, 0, 0}, 3) == kv::place{9, 1});
    CHECK(batch.list(second) == table + 5);
    CHECK(kv::slot_map({table, 4, 0, 0}, 10).list(second) == table + 4);
    CHECK(batch.units == 10);
  }

  TEST_CASE("a row is at its plane's base and strides, or where its pointer says, and its strides from there") {
    std::vector<std::byte> memory(2000);
    std::vector<std::byte*> bases;
    for (std::size_t i = 0; i < 32; ++i) bases.push_back(memory.data() + 7 * i);
    kv::plane rows{memory.data(), kv::codec::f16, 4, 600, 100, 30, 8, 2};
    CHECK(rows.row(2, {3, 1}, 1) == memory.data() + 1200 + 300 + 30 + 8);
    CHECK(rows.contiguous());
    rows.channel_stride = 4;
    CHECK(!rows.contiguous());
    rows.bases = {bases.data()};
    CHECK(rows.row(1, {3, 1}, 1) == memory.data() + 600 + 300 + 30 + 8);  // one pointer that all share
    rows.bases = {bases.data(), 8, 2, 1};
    CHECK(rows.row(1, {3, 1}, 1) == memory.data() + 7 * (8 + 6 + 1) + 600 + 300 + 30 + 8);
  }

  TEST_CASE("the newest token is in the lane, or in the window before it; drafts are no tokens yet") {
    std::vector<int> window_count{2, 0, 3}, window_position{20, 21, -1, -1, -1, -1, 40, 41, 42}, drafts{1, 0, 1};
    std::vector<int> count{1, 2, 0}, position{5, -1, 7, 9, -1, -1};
    kv::dual_cache both;
    both.window.lanes = {.sequences = 3,
                         .layer_end = 1,
                         .heads = 1,
                         .capacity = 3,
                         .count = {window_count.data(), 1, 0, 0},
                         .position = {window_position.data(), 3, 0, 0},
                         .in_flight = drafts.data()};
    both.pages.entries.lanes = {.sequences = 3,
                                .layer_end = 1,
                                .heads = 1,
                                .capacity = 2,
                                .count = {count.data(), 1, 0, 0},
                                .position = {position.data(), 2, 0, 0}};
    auto const newest = [](kv::lanes const& of) {
      return std::vector{of.newest({0, 0, 0}), of.newest({1, 0, 0}), of.newest({2, 0, 0})};
    };
    CHECK(newest(both.window.lanes) == std::vector{20, -1, 41});
    CHECK(newest(both.pages.entries.lanes) == std::vector{5, 9, -1});
    CHECK(newest(kv::lanes_of_pages(both)) == std::vector{20, 9, 41});
    std::vector<int> const slots{2, 0};
    kv::dual_cache const some = kv::only(both, {.slots = slots.data(), .size = 2});
    CHECK(kv::lanes_of_pages(some).newest({0, 0, 0}) == 41);
    CHECK(kv::lanes_of_pages(some).newest({1, 0, 0}) == 20);
    window_count[2] = 9;  // a wrong count reads no further than the window has rows
    CHECK(kv::lanes_of_pages(both).newest({2, 0, 0}) == 42);
    drafts[2] = 12;
    CHECK(kv::lanes_of_pages(both).newest({2, 0, 0}) == -1);
  }

  TEST_CASE("an entry's bytes are those of its keys, its values and all that moves with them") {
    kv::cache cache{};
    cache.k = {.element = kv::codec::f32, .channels = 5};
    cache.v = {.element = kv::codec::bf16, .channels = 3};
    CHECK(kv::entry_bytes(cache) == 26);
    std::vector<kv::plane> const more = {{.element = kv::codec::opaque, .channels = 7},
                                         {.element = kv::codec::f16, .channels = 2}};
    cache.more = more;
    CHECK(kv::entry_bytes(cache) == 37);
  }
}
