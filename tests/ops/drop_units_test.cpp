// SPDX-License-Identifier: Apache-2.0
// drop_units where lanes share the rows of a table: each row is rewritten once, although every lane asks for it.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;
using ints = std::vector<int>;

/// Two sequences with one table of four blocks of two tokens. Each keeps entries 0 and 5, so blocks 0 and 2 stay.
struct two_sequences {
  two_sequences() {
    view.where = kv::block_table({table.data(), 0, 0, 0}, 2, 16);
    view.lanes = lanes_over(count, position, 2, 1, 1, 8);
  }
  void drop(int threads) {
    kv::host_executor exec(threads);
    exec.reserve(kv::implementation<kv::ops::drop_units_t, kv::host>::scratch(view));
    kv::keep_set const keep{.lanes = view.lanes,
                            .indptr = indptr.data(),
                            .indices = kept.data(),
                            .entry_count = seen.data(),
                            .capacity = 4};
    kv::ops::drop_units(exec, keep, view,
                        kv::list_edit<>{.list = {table.data(), 0, 0, 0},
                                        .freed = {{freed.data(), 0, 0, 0}, {freed_count.data(), 0, 0, 0}}},
                        std::span<kv::recorded_column const>{}, &entries);
  }

  ints table{10, 11, 12, 13}, count{8, 8}, position{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7};
  ints freed = ints(8, -1), freed_count = ints(1, -1), kept{0, 5, 0, 5}, seen{8, 8};
  std::vector<std::int64_t> indptr{0, 2, 4};
  std::int64_t entries = 0;
  kv::cache view{.shape = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}};
};

}  // namespace

TEST_SUITE("ops/drop_units") {
  TEST_CASE("a table that two sequences share is rewritten once, and both lose the same entries") {
    for (int const threads : {1, 2}) {
      two_sequences on;
      on.drop(threads);
      CHECK(on.table == ints{10, 12, 11, 13});
      CHECK(on.count == ints{4, 4});
      for (std::size_t const lane : {0u, 8u}) {
        CHECK(ints(on.position.begin() + static_cast<std::ptrdiff_t>(lane),
                   on.position.begin() + static_cast<std::ptrdiff_t>(lane) + 4) == ints{0, 1, 4, 5});
      }
      CHECK(on.freed_count == ints{2});
      CHECK(ints(on.freed.begin(), on.freed.begin() + 2) == ints{11, 13});
      CHECK(on.entries == 8);
    }
  }

  TEST_CASE("so it is if the sequences share their counts and positions, too") {
    for (int const threads : {1, 2}) {
      two_sequences on;
      on.view.lanes.count.sequence = on.view.lanes.position.sequence = 0;
      on.drop(threads);
      CHECK(on.table == ints{10, 12, 11, 13});
      CHECK(on.count == ints{4, 8});
      CHECK(ints(on.position.begin(), on.position.begin() + 4) == ints{0, 1, 4, 5});
      CHECK(on.freed_count == ints{2});
    }
  }
}
