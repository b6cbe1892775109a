// SPDX-License-Identifier: Apache-2.0
// Lists of chosen pages and tokens, in the layouts of FlashInfer's and FlashAttention's kernels.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

using numbers = std::vector<std::int32_t>;

/// One sequence of one layer and two heads, in pages of 4 found through a table for each head: head 0 holds 10 entries,
/// head 1 three, and two drafts are in flight in both. Pages 0 and 2 of head 0 and page 0 of head 1 were chosen.
struct chosen_lanes {
  std::vector<float> rows = std::vector<float>(std::size_t{2} * 32 * 4);
  std::vector<int> table{7, 3, 5, 1, 2, 6, 0, 4};
  std::vector<int> count{12, 5};
  std::vector<int> position = std::vector<int>(2 * 16);
  int drafts = 2;
  std::vector<std::int64_t> offset{0, 2, 3};
  std::vector<int> pages{0, 2, 0};
  std::vector<int> seen{3, 1};
  kv::cache cache{.shape = {1, 2, 2, 4}, .where = kv::block_table({table.data(), 8, 8, 4}, 4, 8)};
  kv::keep_set chosen{.items = kv::item::page,
                      .indptr = offset.data(),
                      .indices = pages.data(),
                      .entry_count = seen.data(),
                      .capacity = 3};

  chosen_lanes() {
    cache.lanes = {.layer_end = 1,
                   .heads = 2,
                   .capacity = 16,
                   .count = {count.data(), 2, 2, 1},
                   .position = {position.data(), 32, 32, 16},
                   .in_flight = &drafts};
    chosen.lanes = cache.lanes;
  }
};

/// Arrays as a caller brings them.
struct arrays {
  numbers indptr = numbers(3), indices = numbers(16, -1), last = numbers(2);
  [[nodiscard]] kv::engines::page_arrays view() { return {indptr, indices, last}; }
  [[nodiscard]] numbers listed(int count) const { return {indices.begin(), indices.begin() + count}; }
};

TEST_SUITE("engines/read_lists") {
  TEST_CASE("every head reads its own pages, drafts behind them and the partial page last") {
    chosen_lanes lanes;
    arrays out;
    int const total = kv::engines::write_chosen_pages(lanes.chosen, lanes.cache, 0, out.view());
    CHECK(out.listed(total) == numbers{7, 5, 2, 6});  // head 1's drafts reach into its second page
    CHECK(out.indptr == numbers{0, 2, 4});
    CHECK(out.last == numbers{4, 1});
    lanes.count = {10, 3};
    lanes.drafts = 0;
    CHECK(kv::engines::write_chosen_pages(lanes.chosen, lanes.cache, 0, out.view()) == 3);
    CHECK(out.last == numbers{2, 3});
  }

  TEST_CASE("a block table has a row for each head, and a length") {
    chosen_lanes lanes;
    numbers tables(2 * 3), lengths(2);
    kv::engines::write_chosen_tables(lanes.chosen, lanes.cache, 0, {tables.data(), lengths.data(), 3, -1});
    CHECK(tables == numbers{7, 5, -1, 2, 6, -1});
    CHECK(lengths == numbers{8, 5});
  }

  TEST_CASE("tokens of chosen pages are listed by ordinal and by slot") {
    chosen_lanes lanes;
    std::vector<int> ordinals(8);
    CHECK(kv::engines::tokens_of(lanes.chosen, 4, lanes.cache.lanes, {0, 0, 1}, ordinals) == 5);
    CHECK(kv::engines::tokens_of(lanes.chosen, 4, lanes.cache.lanes, {0, 0, 0}, ordinals) == 8);
    CHECK(ordinals == std::vector{0, 1, 2, 3, 8, 9, 10, 11});
    arrays out;
    int const total = kv::engines::write_chosen_tokens(lanes.chosen, 4, lanes.cache, 0, out.view());
    CHECK(out.listed(total) == numbers{28, 29, 30, 31, 20, 21, 22, 23, 8, 9, 10, 11, 24});
    CHECK(out.indptr == numbers{0, 8, 13});
    CHECK(out.last == numbers{1, 1});
  }

  TEST_CASE("a lane without entries reads nothing") {
    chosen_lanes lanes;
    lanes.count = {12, 0};
    lanes.drafts = 0;
    lanes.seen = {3, 0};
    lanes.offset = {0, 2, 2};
    arrays out;
    CHECK(kv::engines::write_chosen_pages(lanes.chosen, lanes.cache, 0, out.view()) == 2);
    CHECK(out.indptr == numbers{0, 2, 2});
    CHECK(out.last == numbers{4, 0});
  }

  TEST_CASE("lists that would be wrong or do not fit are refused") {
    chosen_lanes lanes;
    arrays out;
    auto const refused = [&] {
      return error_of([&] { kv::engines::write_chosen_pages(lanes.chosen, lanes.cache, 0, out.view()); });
    };
    numbers tables(2), lengths(2);
    CHECK(error_of([&] {
            kv::engines::write_chosen_tables(lanes.chosen, lanes.cache, 0, {tables.data(), lengths.data(), 1, 0});
          }) == "write_chosen_tables: max_pages = 1, but a lane reads 2 pages");
    std::vector<int> few(7);
    CHECK(error_of([&] { kv::engines::tokens_of(lanes.chosen, 4, lanes.cache.lanes, {}, few); }) ==
          "tokens_of: out = 7, but the lane reads 8 entries");
    CHECK(error_of([&] { kv::engines::tokens_of(lanes.chosen, 8, lanes.cache.lanes, {}, few); }) ==
          "tokens_of: chosen = made for 3 pages of a lane, but the lane has 2 of 8: select again");
    out.indices.resize(3);
    CHECK(refused() == "write_chosen_pages: indices = 3, but the selection reads 4");
    lanes.count[0] = 15;
    CHECK(refused() ==
          "write_chosen_pages: chosen = made for 3 pages of a lane, but the lane has 4 of 4: select again");
    lanes.chosen.items = kv::item::token;
    CHECK(refused() == "write_chosen_pages: chosen.items = tokens, but a selection chooses pages");
    lanes.chosen.indices = nullptr;
    CHECK(refused() == "write_chosen_pages: chosen = empty, but select comes before reading");
    CHECK(tables == numbers(2));
    CHECK(out.indptr == numbers(3));
  }
}

}  // namespace
