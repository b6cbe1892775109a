// SPDX-License-Identifier: Apache-2.0
// A cache in the blocks of a pool keeps what the same rows keep in a contiguous cache, and moves the same ones.

#include <kvpolicy/c/kvpolicy.h>

#include "c/small_engine.hpp"

namespace {

using engine = c_test::small_engine;

/// Where the row of a token is, in numbers.
std::size_t row(engine const& of, int sequence, int layer, int token, int head) {
  std::size_t const block = engine::block, width = std::size_t{engine::kv_heads} * engine::dim;
  std::size_t const at = static_cast<std::size_t>(token), whole = static_cast<std::size_t>(sequence);
  if (of.cache.blocks == nullptr) {
    return ((whole * engine::layers + static_cast<std::size_t>(layer)) * engine::capacity + at) * width +
           static_cast<std::size_t>(head) * engine::dim;
  }
  auto const unit = static_cast<std::size_t>(of.blocks[whole * engine::capacity / block + at / block]);
  return ((unit * engine::layers + static_cast<std::size_t>(layer)) * block + at % block) * width +
         static_cast<std::size_t>(head) * engine::dim;
}

/// Calls visit(row in `a`, row in `b`) for every number of all entries.
template <class Visit>
void for_each_number(engine const& a, engine const& b, std::vector<int> const& counts, Visit const& visit) {
  std::size_t lane = 0;
  for (int s = 0; s < engine::sequences; ++s) {
    for (int l = 0; l < engine::layers; ++l) {
      for (int h = 0; h < engine::kv_heads; ++h, ++lane) {
        for (int e = 0; e < counts[lane]; ++e) {
          for (std::size_t d = 0; d < engine::dim; ++d) visit(row(a, s, l, e, h) + d, row(b, s, l, e, h) + d);
        }
      }
    }
  }
}

}  // namespace

TEST_SUITE("c/kvpolicy") {
  TEST_CASE("blocks of a pool") {
    for (char const* const spec : {"snapkv(window=1) | budget(4)", "knorm | budget(5)", "streaming_llm | budget(6)"}) {
      CAPTURE(spec);
      engine contiguous(spec), paged(spec);
      paged.use_blocks();
      REQUIRE(contiguous.make() == KVPOLICY_OK);
      REQUIRE(paged.make() == KVPOLICY_OK);
      kvpolicy_test::dice random(11);
      std::vector<int> const full(contiguous.counts.size(), engine::capacity);
      for (auto const& [mine, theirs] :
           {std::pair{&contiguous.keys, &paged.keys}, std::pair{&contiguous.values, &paged.values}}) {
        for_each_number(contiguous, paged, full, [&, one = mine, other = theirs](std::size_t a, std::size_t b) {
          (*one)[a] = (*other)[b] = static_cast<float>(random.real(1));
        });
      }
      contiguous.row_positions = paged.row_positions = {engine::capacity - 1, engine::capacity - 1};
      for (engine* const each : {&contiguous, &paged}) {
        for (int s = 0; s < engine::sequences; ++s) {
          REQUIRE(kvpolicy_append(each->state, s, engine::capacity, 0) == KVPOLICY_OK);
        }
        REQUIRE(kvpolicy_observe(each->state, &each->signals) == KVPOLICY_OK);
        REQUIRE(kvpolicy_decide(each->state, &each->signals) == KVPOLICY_OK);
        REQUIRE(kvpolicy_apply(each->state, nullptr) == KVPOLICY_OK);
      }
      CHECK(contiguous.counts == paged.counts);
      CHECK(contiguous.counts[0] < engine::capacity);
      CHECK(contiguous.positions == paged.positions);
      for_each_number(contiguous, paged, contiguous.counts, [&](std::size_t a, std::size_t b) {
        CHECK(contiguous.keys[a] == paged.keys[b]);
        CHECK(contiguous.values[a] == paged.values[b]);
      });
    }
  }

  TEST_CASE("a block outside of the pool, and one of another sequence, are refused, and nothing moves") {
    engine one("streaming_llm | budget(5)");
    one.use_blocks();
    REQUIRE(one.make() == KVPOLICY_OK);
    for (int s = 0; s < engine::sequences; ++s) REQUIRE(kvpolicy_append(one.state, s, 6, 0) == KVPOLICY_OK);
    one.blocks[1] = 7;
    std::vector<float> const before = one.keys;
    REQUIRE(kvpolicy_decide(one.state, &one.signals) == KVPOLICY_OK);
    CHECK(kvpolicy_apply(one.state, nullptr) == KVPOLICY_INVALID_ARGUMENT);
    CHECK(std::string(kvpolicy_last_error()) ==
          "kvpolicy_apply: cache.blocks = 7 (entry 4 of layer 0, head 0 of sequence 0), but the pool has units 0 to 3");
    CHECK(one.keys == before);
    CHECK(one.counts[0] == 6);
    one.blocks[1] = one.blocks[2];  // of the other sequence
    CHECK(kvpolicy_apply(one.state, nullptr) == KVPOLICY_INVALID_ARGUMENT);
    CHECK(std::string(kvpolicy_last_error()) ==
          "kvpolicy_apply: cache.blocks = 0 (entry 0 of layer 0, head 0 of sequence 1), but another entry has this "
          "place, too, and rows would be moved there");
    CHECK(one.keys == before);
  }
}
