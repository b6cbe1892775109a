// SPDX-License-Identifier: Apache-2.0
// A verdict before anything was judged.

#include "support/test.hpp"

TEST_SUITE("accounting/explain") {
  TEST_CASE("a verdict that nobody has made is that of a dropped entry among none") {
    kvpolicy::verdict const none;
    CHECK(none.lane == kvpolicy::lane{0, 0, 0});
    CHECK(none.ordinal == 0);
    CHECK(none.position == 0);
    CHECK(!none.kept);
    CHECK(!none.forced);
    CHECK(!none.all_kept);
    CHECK(none.score == 0);
    CHECK(none.rank == 0);
    CHECK(none.candidates == 0);
    CHECK(none.kept_candidates == 0);
    CHECK(none.cut == 0);
  }
}
