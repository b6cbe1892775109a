// SPDX-License-Identifier: Apache-2.0
// Slots as bytes: what is loaded is what was saved, and bytes that are not that are refused.

#include "laws/served_requests.hpp"

namespace {

using namespace kvpolicy_test;

using host_engine = serving_engine<kv::host_executor>;

mock_options shape_of(int slots) {
  mock_options how;
  how.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4};
  how.sequences = slots;
  how.bound = 24;
  return how;
}
kv::any_policy h2o(int budget = 8) {
  return kv::any_policy(kv::eviction{.score = kv::h2o{}, .budget = kv::per_lane{budget}});
}
request_script const script{.seed = 5, .chunks = {14}};

std::vector<std::byte> saved(host_engine& engine, int slot, kv::rows what = kv::rows::copy) {
  std::vector<std::byte> bytes(kv::saved_bytes(engine.exec(), engine.all(), engine.state(), slot, what));
  CHECK(kv::save(engine.exec(), engine.all(), engine.state(), slot, bytes, what) == bytes.size());
  return bytes;
}

TEST_SUITE("saved slots") {
  TEST_CASE("a slot is loaded into another engine") {
    for (bool const per_lane : {true, false}) {
      kv::any_policy const policy =
          per_lane ? h2o()
                   : kv::any_policy(kv::eviction{.score = kv::h2o{}, .budget = kv::per_layer{8}});  // ragged heads
      host_engine engine(shape_of(2), policy, 1, {}, 1);
      engine.forward({{1, &script, 0, 14}});
      auto const bytes = saved(engine, 1);
      host_engine other(shape_of(3), policy, 1, {}, 2);
      kv::load(other.exec(), other.all(), other.state(), 2, bytes);
      CHECK(other.image(2) == engine.image(1));
      CHECK(error_of([&] { kv::append(other.exec(), other.all(), other.state(), {2, 1, 0}); }) != "");
    }
  }

  TEST_CASE("the engine may move rows itself") {
    host_engine engine(shape_of(2), h2o(), 1, {}, 1);
    engine.forward({{1, &script, 0, 14}});
    auto const with_rows = saved(engine, 1);
    auto const without = saved(engine, 1, kv::rows::leave);
    CHECK(with_rows.size() - without.size() == 2u * 4 * 8 * 4 * sizeof(float));  // K and V of 4 lanes of 8 entries
    kv::load(engine.exec(), engine.all(), engine.state(), 0, without, kv::rows::leave);
    CHECK(engine.memory().positions({0, 1, 1}, 8) == engine.memory().positions({1, 1, 1}, 8));
    kv::reset(engine.exec(), engine.all(), engine.state(), 0);
    CHECK(error_of([&] { kv::load(engine.exec(), engine.all(), engine.state(), 0, without); }) ==
          "load: rows = copy, but the slot was saved without its rows");
  }

  TEST_CASE("bytes that are truncated, or of another version, policy or model are refused, and nothing is changed") {
    host_engine engine(shape_of(2), h2o(), 1, {}, 1);
    engine.forward({{1, &script, 0, 14}});
    auto const good = saved(engine, 1);
    auto const before = engine.image(0);
    auto const refused = [&](std::vector<std::byte> const& bytes) {
      std::string const text = error_of([&] { kv::load(engine.exec(), engine.all(), engine.state(), 0, bytes); });
      CHECK(engine.image(0) == before);
      return text;
    };
    auto const size = std::to_string(good.size());
    CHECK(refused({good.begin(), good.end() - 1}) == "load: bytes = " + std::to_string(good.size() - 1) +
                                                         ", but the saved slot has " + size +
                                                         ": it is truncated, or more follows");
    CHECK(refused({good.begin(), good.begin() + 7}) ==
          "load: bytes = 7, but the saved slot is truncated: it goes on after byte 0");
    CHECK(refused({}) == "load: bytes = 0, but the saved slot is truncated: it goes on after byte 0");
    auto const with = [&](std::size_t at, unsigned char value) {
      auto bytes = good;
      bytes[at] = std::byte{value};
      return bytes;
    };
    CHECK(refused(with(0, 'x')) == "load: bytes = no saved slot, but kvpolicy::save writes them");
    CHECK(refused(with(8, 9)) == "load: version = 9, but this library reads version 1");
    host_engine snap(shape_of(2), kv::any_policy(kv::eviction{.score = kv::snapkv{}, .budget = kv::per_lane{8}}), 1, {},
                     1);
    CHECK(error_of([&] { kv::load(snap.exec(), snap.all(), snap.state(), 0, good); }) ==
          "load: state = another policy's, but the slot was saved with the columns of another policy");
    mock_options other = shape_of(2);
    other.model.layers = 3;
    host_engine deeper(other, h2o(), 1, {}, 1);
    CHECK(error_of([&] { kv::load(deeper.exec(), deeper.all(), deeper.state(), 0, good); }) ==
          "load: model = another one, but it was saved with 2 layers of 2 KV heads with 4 channels, layers 0 to 2");
    mock_options halves = shape_of(2);
    halves.element = kv::codec::f16;
    host_engine half(halves, h2o(), 1, {}, 1);
    CHECK(error_of([&] { kv::load(half.exec(), half.all(), half.state(), 0, good); }) ==
          "load: rows = of another type or size, but rows are copied byte by byte");
    CHECK(error_of([&] { kv::load(engine.exec(), engine.all(), engine.state(), 1, good); }) ==
          "load: slot = 1, but a request uses this slot: reset it first");
    mock_options small = shape_of(2);
    small.bound = 6;
    host_engine narrow(small, h2o(6), 1, {}, 1);
    CHECK(error_of([&] { kv::load(narrow.exec(), narrow.all(), narrow.state(), 0, good); }) ==
          "load: lanes.capacity = 6, but a lane of the saved slot holds 8 entries");
    std::vector<std::byte> short_of(good.size() - 1);
    CHECK(error_of([&] { kv::save(engine.exec(), engine.all(), engine.state(), 1, short_of); }) ==
          "save: to = " + std::to_string(good.size() - 1) + ", but saved_bytes says " + size);
  }

  TEST_CASE("a flipped bit is refused, but for one in the rows, which are the engine's") {
    host_engine engine(shape_of(2), h2o(), 1, {}, 1);
    engine.forward({{1, &script, 0, 14}});
    auto const good = saved(engine, 1);
    auto const other = engine.image(1);
    std::size_t const rows = 2 * 4 * 8 * 4 * sizeof(float);  // K and V of 4 lanes of 8 entries come last
    dice random(7);
    for (int i = 0; i < 300; ++i) {
      auto bytes = good;
      auto const at = as_size(random.below(static_cast<int>(good.size())));
      bytes[at] ^= static_cast<std::byte>(1 << random.below(8));
      bool const in_rows = at >= good.size() - rows;
      CHECK(error_of([&] { kv::load(engine.exec(), engine.all(), engine.state(), 0, bytes); }).empty() == in_rows);
      CHECK(engine.image(1) == other);
      kv::reset(engine.exec(), engine.all(), engine.state(), 0);
    }
  }

  TEST_CASE("a slot gets pages of its own before anything writes into shared ones") {
    mock_options how = shape_of(2);
    how.where = kv::locating::block_table;
    how.shared_table = false;
    host_engine engine(how, h2o(), 1, {}, 1);
    engine.forward({{0, &script, 0, 14}});  // 8 entries: two pages of 4 a lane
    kv::cache& all = engine.all();
    auto const& where = all.where.table;
    kv::by_lane<int> const table{const_cast<int*>(where.data), where.sequence, where.layer, where.head};
    kv::fork(engine.exec(), all, engine.state(), 0, 1, kv::rows::leave);
    std::vector<int> own;  // the second page of each lane of slot 1
    for (int layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < 2; ++head) {
        own.push_back(table.row({1, layer, head})[1]);
        std::copy_n(table.row({0, layer, head}), 2, table.row({1, layer, head}));  // slot 1 shares the pages of slot 0
      }
    }
    auto const shared = engine.image(0);
    CHECK(engine.image(1) == shared);
    std::vector<int> asked;
    auto const too_few = [&](int page) -> int {
      asked.push_back(page);
      if (asked.size() == 3) throw kv::invalid_argument("no page is free");
      return own[asked.size() - 1];
    };
    CHECK(error_of([&] { kv::copy_on_write(engine.exec(), all, table, 1, 4, too_few); }) == "no page is free");
    CHECK(table.row({1, 0, 0})[1] == table.row({0, 0, 0})[1]);
    asked.clear();
    auto const fresh = [&](int page) {
      asked.push_back(page);
      return own[asked.size() - 1];
    };
    CHECK(kv::copy_on_write(engine.exec(), all, table, 1, 4, fresh) == 4);
    CHECK(engine.image(1) == shared);
    CHECK(asked == std::vector{table.row({0, 0, 0})[1], table.row({0, 0, 1})[1], table.row({0, 1, 0})[1],
                               table.row({0, 1, 1})[1]});
    CHECK(table.row({1, 1, 0})[0] == table.row({0, 1, 0})[0]);
    engine.memory().write(of::keys, {1, 1, 0}, 5, {9, 9, 9, 9});
    CHECK(engine.image(0) == shared);
    CHECK(engine.image(1) != shared);
    CHECK(kv::copy_on_write(engine.exec(), all, table, 1, 0, [](int page) { return page; }) == 0);
    CHECK(error_of([&] { kv::copy_on_write(engine.exec(), all, table, 2, 0, [](int page) { return page; }); }) ==
          "copy_on_write: slot = 2, but the cache has slots 0 to 1");
  }
}

}  // namespace
