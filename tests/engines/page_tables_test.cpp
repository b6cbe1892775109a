// SPDX-License-Identifier: Apache-2.0
// Arrays that kernels read: what they name is what the lanes hold.

#include "engines/histories.hpp"

namespace {

using namespace kvpolicy_test;

template <class History>
void live(History& run) {
  for (int round = 0; round < 2; ++round) {
    int const tokens = *rc::gen::inRange(0, 9);
    for (int s = 0; s < run.pool.how.sequences; ++s) run.append(s, std::min(tokens + s, run.room(s)));
    run.evict();
  }
}

/// A kernel with one table for all heads finds every entry's key through indptr, indices and last_page_len.
template <applier By>
void kernels_find_pages() {
  using mock = flashinfer_mock<engines::flashinfer>;
  auto const how = any_pool<mock>();
  RC_LOG() << how << '\n';
  history<mock, By> run(how, *rc::gen::inRange(1, 9));
  live(run);
  int const n = how.sequences;
  std::vector<std::int32_t> indptr(as_size(n + 1), -7), indices(200, -7), last(as_size(n), -7);
  for (int l = 0; l < how.layers; ++l) {
    int const total = engines::write_page_arrays(run.view, l, {indptr, indices, last});
    RC_ASSERT(total == indptr.back());
    RC_ASSERT(indices[as_size(total)] == -7 || l > 0);
    for (int s = 0; s < n; ++s) {
      int const begin = indptr[as_size(s)];
      int const pages = indptr[as_size(s + 1)] - begin;
      int const length = pages == 0 ? 0 : (pages - 1) * run.pool.page() + last[as_size(s)];
      for (int h = 0; h < how.heads; ++h) {
        kv::lane const this_lane{s, l, h};
        auto const& tokens = run.tokens[run.pool.index(this_lane)];
        RC_ASSERT(length == static_cast<int>(tokens.size()));
        for (int e = 0; e < length; ++e) {
          int const page = indices[as_size(begin + e / run.pool.page())];
          auto const expected = run.fingerprint(of::keys, this_lane, tokens[as_size(e)].number);
          std::byte const* const key = run.pool.element(of::keys, this_lane, page, e % run.pool.page(), 0);
          RC_ASSERT(std::equal(expected.begin(), expected.end(), key));
        }
      }
    }
  }
}

/// A kernel with a table for each head, and lanes of any length.
template <applier By>
void kernels_find_pages_of_heads() {
  using mock = flashinfer_mock<engines::flashinfer_heads>;
  auto const how = any_pool<mock>();
  RC_LOG() << how << '\n';
  history<mock, By> run(how, *rc::gen::inRange(1, 9));
  live(run);
  int const most = run.pool.pages() + 1;
  auto const rows = as_size(how.heads * how.sequences);
  std::vector<std::int32_t> tables(rows * as_size(most), -7), lengths(rows, -7);
  for (int l = 0; l < how.layers; ++l) {
    engines::write_head_tables(run.view, l, {tables.data(), lengths.data(), most, -1});
    for (int h = 0; h < how.heads; ++h) {
      for (int s = 0; s < how.sequences; ++s) {
        kv::lane const this_lane{s, l, h};
        auto const row = as_size(h * how.sequences + s);
        auto const& tokens = run.tokens[run.pool.index(this_lane)];
        RC_ASSERT(lengths[row] == static_cast<int>(tokens.size()));
        for (int e = 0; e < lengths[row]; ++e) {
          int const page = tables[row * as_size(most) + as_size(e / run.pool.page())];
          auto const expected = run.fingerprint(of::keys, this_lane, tokens[as_size(e)].number);
          std::byte const* const key = run.pool.element(of::keys, this_lane, page, e % run.pool.page(), 0);
          RC_ASSERT(std::equal(expected.begin(), expected.end(), key));
        }
        RC_ASSERT(tables[(row + 1) * as_size(most) - 1] == -1);
      }
    }
  }
}

}  // namespace

TEST_SUITE("engines/page_tables") {
  TEST_CASE("a kernel finds every entry through indptr, indices and last_page_len") {
    holds("after list_rewrite", 40, [] { kernels_find_pages<applier::list_rewrite>(); });
    holds("after drop_blocks", 40, [] { kernels_find_pages<applier::drop_blocks>(); });
    holds("after compact", 40, [] { kernels_find_pages<applier::compact>(); });
  }

  TEST_CASE("a kernel finds every entry of a head through the head's own table") {
    holds("after list_rewrite", 40, [] { kernels_find_pages_of_heads<applier::list_rewrite>(); });
    holds("after drop_blocks", 40, [] { kernels_find_pages_of_heads<applier::drop_blocks>(); });
    holds("after compact", 40, [] { kernels_find_pages_of_heads<applier::compact>(); });
  }

  TEST_CASE("what does not fit is refused and nothing is written") {
    history<flashinfer_mock<engines::flashinfer_heads>, applier::drop_blocks> run({.sequences = 1}, 4);
    run.append(0, 9);
    std::vector<std::int32_t> indptr(2, -7), indices(2, -7), last(1, -7), table(4, -7), length(2, -7);
    CHECK(error_of([&] { engines::write_page_arrays(run.view, 0, {indptr, indices, last}); }) ==
          "write_page_arrays: head = 1, but it holds other entries than head 0: write_head_tables gives each head its "
          "own table");
    CHECK(error_of([&] { engines::write_head_tables(run.view, 0, {table.data(), length.data(), 2}); }) ==
          "write_head_tables: max_pages = 2, but a lane has 3 pages");
    CHECK(error_of([&] { engines::write_head_tables(run.view, 2, {table.data(), length.data(), 2}); }) ==
          "write_head_tables: layer = 2, but the layers are 0 to 2");
    history<flashinfer_mock<engines::flashinfer>, applier::drop_blocks> shared({.sequences = 1}, 4);
    shared.append(0, 9);
    CHECK(error_of([&] { engines::write_page_arrays(shared.view, 0, {indptr, indices, last}); }) ==
          "write_page_arrays: indices = 2, but the batch has 3 pages");
    CHECK(error_of([&] { engines::write_page_arrays(shared.view, 0, {{indptr.data(), 1}, indices, last}); }) ==
          "write_page_arrays: indptr = 1, but it has a number for each sequence, and one more");
    for (auto const* const each : {&indptr, &indices, &last, &table, &length}) {
      CHECK(std::all_of(each->begin(), each->end(), [](int one) { return one == -7; }));
    }
    kv::cache wide = shared.view;
    wide.where.units = std::int64_t{1} << 31;
    indices.resize(8);
    CHECK(error_of([&] { engines::write_page_arrays(wide, 0, {indptr, indices, last}); }) ==
          "write_page_arrays: where.units = 2147483648, but the kernel's page numbers have 32 bits");
  }

  TEST_CASE("the slots of new tokens follow from ordinals") {
    vllm_mock pool({.sequences = 1});
    kv::cache const view = pool.view();
    std::vector<std::int64_t> slots(6);
    engines::write_slot_mapping(view, {0, 1, 1}, 5, slots);
    for (int i = 0; i < 6; ++i) {
      int const ordinal = 5 + i;
      CHECK(slots[as_size(i)] == pool.table_entry({0, 1, 1}, ordinal / 4) * 4 + ordinal % 4);
    }
    CHECK(error_of([&] { engines::write_slot_mapping(view, {0, 0, 0}, 20, slots); }) ==
          "write_slot_mapping: first = 20, but a lane has room for 24 entries");
  }

  TEST_CASE("dropped positions and blocks are told before they go") {
    history<vllm_mock, applier::drop_blocks> run({.sequences = 1}, 8);
    run.append(0, 24);
    kv::decide(run.exec, run.policy, kv::signals{run.view.lanes}, run.state, run.plan);
    std::vector<int> blocks(6, -1), positions(24, -1);
    int const gone = engines::dropped_blocks(run.plan.keep(), run.view, {0, 0, 0}, blocks);
    int const lost = engines::dropped_positions(run.plan.keep(), run.view, {0, 0, 0}, positions);
    auto const kept = run.plan.keep().listed(0);
    CHECK(lost == 16);
    for (int i = 0; i < lost; ++i) {
      CHECK(std::find(kept.begin(), kept.end(), positions[as_size(i)]) == kept.end());
    }
    CHECK(gone > 0);
    for (int i = 0; i < gone; ++i) {
      for (int const k : kept) CHECK(k / 4 != blocks[as_size(i)]);
    }
    CHECK(error_of([&] { engines::dropped_positions(run.plan.keep(), run.view, {0, 0, 0}, {}); }) ==
          "dropped_positions: out = 0, but 16 entries are dropped");
    run.evict();
    CHECK(run.pool.count({0, 0, 0}) == 24 - 4 * gone);
  }

  TEST_CASE("blocks of drafts are never told as dropped") {
    for (int const committed : {8, 6}) {  // drafts begin a block, or stand behind dropped entries of one
      history<vllm_mock, applier::drop_blocks> run({.sequences = 1}, 1);
      run.append(0, committed);
      kv::append(run.exec, run.view, run.state, {.tokens = 5, .position = committed, .in_flight = true});
      kv::decide(run.exec, run.policy, kv::signals{run.view.lanes}, run.state, run.plan);
      std::vector<int> blocks(6, -1);
      int const gone = engines::dropped_blocks(run.plan.keep(), run.view, {0, 0, 0}, blocks);
      CHECK(gone == (committed == 8 ? 1 : 0));
      CHECK(blocks[0] == (committed == 8 ? 1 : -1));
    }
  }
}
