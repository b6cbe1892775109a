// SPDX-License-Identifier: Apache-2.0
// Budgets: how many entries survive, who shares them, what is refused, and that one chosen at run time is the same.

#include "laws/refusal.hpp"

namespace {

using namespace kvpolicy_test;

constexpr int no_limit = 0x7FFFFFFF;
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// One chosen at run time gives every lane and pool what the typed one gives, once it is known what an entry costs.
template <class Budget, class Counted>
void erases(Budget const& limit, kv::budget_scope scope, double floor, Counted const& counted) {
  kv::any_budget const erased(limit);
  kv::shape const model{.layers = 3, .query_heads = 8, .kv_heads = 2, .head_dim = 4};
  INFO(kv::to_string(limit));
  CHECK(kv::to_string(erased) == kv::to_string(limit));
  CHECK(erased.scope() == scope);
  for (int count : {0, 1, 2, 3, 10, 99, 100, 1000, 4096}) {
    CHECK(erased({}, count) == limit({}, count));
    CHECK(erased.in_entries(model, 32)({}, count) == counted({}, count));
    CHECK(erased.floor(count) == kv::per_sequence{1, floor}.floor(count));
  }
  CHECK(erased.in_entries(model, 32).scope() == scope);
}
template <class Budget>
void erases(Budget const& limit, kv::budget_scope scope = kv::budget_scope::lane, double floor = 0) {
  erases(limit, scope, floor, limit);
}

}  // namespace

TEST_SUITE("parts/budget") {
  TEST_CASE("whole blocks are lost, at least one stays, and a lane that fits into its budget keeps all") {
    kv::whole_blocks const limit{.tokens = 64, .block = 32};
    CHECK(limit({}, 64) == 64);
    CHECK(limit({}, 300) == 44);  // 300 = 9 * 32 + 12, and one block fits beside the twelve
    CHECK(limit({}, 500) == 52);
    CHECK(limit({}, 65) == 33);
    CHECK(kv::whole_blocks{.tokens = 16, .block = 32}({}, 100) == 36);  // less than a block and the tail
    CHECK(kv::whole_blocks{.tokens = 16, .block = 32}({}, 31) == 31);
    CHECK(kv::whole_blocks{.tokens = 16, .block = no_limit}({}, 100) == 100);
    CHECK(kv::whole_blocks{.tokens = 16, .block = 1 << 30}({}, no_limit) == no_limit);
    for (int count = 1; count < 400; ++count) {
      for (int tokens : {1, 31, 32, 33, 100, 128}) {
        int const kept = std::min(count, kv::whole_blocks{tokens, 32}({}, count));
        CHECK((count - kept) % 32 == 0);
        CHECK((kept <= tokens || kept < 64));
        CHECK((kept == count || kept > tokens - 32));
      }
    }
    CHECK(error_of([] { static_cast<void>(kv::parse_cache_policy("select: quest | budget(64, block=32)")); }) ==
          "parse: column 28 = block, but a selection reads pages: page(size) says how large they are");
    erases(limit);
    CHECK(kv::to_string(limit) == "budget(64, block=32)");
    CHECK(kv::parse("knorm | budget(64, block=32)").budget == kv::any_budget(limit));
    CHECK(refusal_of_part(kv::whole_blocks{.block = 0}) ==
          "here: budget.block = 0, but a block has at least one entry");
    for (char const* const with :
         {"ratio=0.5, block=8", "64, block=8, scope=layer", "64, block=8, by=ramp", "64, block=-1"}) {
      CHECK(error_of([&] {
              static_cast<void>(kv::parse(std::string("knorm | budget(") + with + ")"));
            }).find("budget.block = ") != std::string::npos);
    }
  }

  TEST_CASE("a budget in tokens is the same for every lane, whatever it holds") {
    for (int count : {0, 1, 7, 100000}) {
      CHECK(kv::per_lane{7}({}, count) == 7);
      CHECK(kv::per_layer{7}({}, count) == 7);
      CHECK(kv::per_sequence{7}({}, count) == 7);
      CHECK(kv::unlimited{}({}, count) == no_limit);
    }
    CHECK(kv::per_lane{}({}, 1) == 1024);
    CHECK(kv::per_layer{}({}, 1) == 1024);
    CHECK(kv::per_sequence{}({}, 1) == 1024);
  }

  TEST_CASE("who shares a budget: nobody, a layer, or all lanes of a sequence") {
    CHECK(kv::per_layer::scope() == kv::budget_scope::layer);
    CHECK(kv::per_sequence::scope() == kv::budget_scope::sequence);
    CHECK(kv::any_budget{}.scope() == kv::budget_scope::lane);
    CHECK(kv::any_budget(kv::per_layer{}).scope() == kv::budget_scope::layer);
    CHECK(kv::any_budget(kv::per_sequence{}).scope() == kv::budget_scope::sequence);
  }

  TEST_CASE("a floor is a part of the share, a product of doubles that is cut") {
    CHECK(kv::per_layer{}.floor(10) == 2);
    CHECK(kv::per_layer{100, 0.29}.floor(100) == 28);  // 0.29 * 100 is 28.999999999999996 in doubles
    CHECK(kv::any_budget(kv::per_sequence{100, 0.29}).floor(100) == 28);
    CHECK(kv::per_layer{100, 0.5}.floor(9) == 4);
    CHECK(kv::per_layer{100, 0}.floor(100) == 0);
    CHECK(kv::per_layer{100, 1}.floor(100) == 100);
    CHECK(kv::per_sequence{}.floor(1000) == 0);
    CHECK(kv::per_sequence{100, 0.5}.floor(7) == 3);
    CHECK(kv::any_budget(kv::per_sequence{100, 0.5}).floor(7) == 3);
  }

  TEST_CASE("kvpress keeps at least one entry of a ratio below 1; before 0.5.5 it might keep none") {
    for (double const drop : {0.0, 0.1, 0.34, 0.5, 0.9, 0.95, 0.999, 1.0}) {
      for (int count = 0; count <= 120; ++count) {
        int const truncated = static_cast<int>(count * (1 - drop));
        int const least = drop < 1 && count > 0 ? std::max(1, truncated) : truncated;
        CHECK(kv::drop_ratio{drop, kv::rounding::kvpress}({}, count) == least);
        CHECK(kv::drop_ratio{drop, kv::rounding::kvpress_0_5_4}({}, count) == truncated);
      }
    }
    CHECK(kv::drop_ratio{0.95, kv::rounding::kvpress}({}, 10) == 1);
    CHECK(kv::drop_ratio{0.95, kv::rounding::kvpress_0_5_4}({}, 10) == 0);
    CHECK(kv::drop_ratio{0.95, kv::rounding::exact}({}, 10) == 0);
  }

  TEST_CASE("with kvpress' rounding a floor above 0 guarantees a lane that shares one entry") {
    kv::any_budget pooled(kv::drop_ratio{0.5, kv::rounding::kvpress});
    pooled.shared_by = kv::budget_scope::layer;
    pooled.floor_part = 0.2;
    CHECK(pooled.floor(10) == 2);
    CHECK(pooled.floor(4) == 1);  // int(0.8) is 0
    CHECK(pooled.floor(1) == 1);
    CHECK(pooled.floor(0) == 0);
    pooled.floor_part = 0;
    CHECK(pooled.floor(4) == 0);
    pooled.floor_part = 0.2;
    for (kv::rounding const other : {kv::rounding{}, kv::rounding::exact, kv::rounding::kvpress_0_5_4}) {
      pooled.round = other;
      CHECK(pooled.floor(10) == 2);
      CHECK(pooled.floor(4) == 0);
    }
  }

  TEST_CASE("a ratio keeps what is left of each lane, rounded down, or as kvpress truncates") {
    CHECK(kv::drop_ratio{}({}, 9) == 4);
    CHECK(kv::drop_ratio{0.9}({}, 100) == 10);
    CHECK(kv::drop_ratio{0.9, kv::rounding::kvpress}({}, 100) == 9);  // 100 * (1 - 0.9) is 9.999999999999998
    CHECK(kv::drop_ratio{0}({}, 17) == 17);
    CHECK(kv::drop_ratio{1}({}, 17) == 0);
    CHECK(kv::drop_ratio{0.25, kv::rounding::kvpress}({}, 10) == 7);
    CHECK(kv::drop_ratio{0.25}({}, 0) == 0);
  }

  TEST_CASE("a budget in bytes is shared equally by layers and heads, in whole entries") {
    kv::shape const model{.layers = 3, .query_heads = 8, .kv_heads = 2, .head_dim = 4};
    CHECK(kv::in_bytes{6 * 32 * 10}.in_entries(model, 32).tokens == 10);
    CHECK(kv::in_bytes{6 * 32 * 10 - 1}.in_entries(model, 32).tokens == 9);
    CHECK(kv::in_bytes{0}.in_entries(model, 32).tokens == 0);
    CHECK(kv::in_bytes{std::int64_t{1} << 60}.in_entries(model, 1).tokens == no_limit);
    CHECK(kv::in_bytes{6LL * (no_limit - 1LL)}.in_entries(model, 1).tokens == no_limit - 1);
    CHECK(kv::in_bytes{5}({}, 100) == 5);  // before a plan has told what an entry costs
    CHECK(kv::in_bytes{}({}, 100) == 1 << 20);
    CHECK(kv::in_bytes{no_limit - 1}({}, 100) == no_limit - 1);
    CHECK(kv::in_bytes{std::int64_t{1} << 40}({}, 100) == no_limit);
  }

  TEST_CASE("a budget prints what a spec would say") {
    CHECK(kv::to_string(kv::per_lane{5}) == "budget(5)");
    CHECK(kv::to_string(kv::per_layer{5, 0.25}) == "budget(5, scope=layer, floor=0.25)");
    CHECK(kv::to_string(kv::per_layer{5, 0}) == "budget(5, scope=layer)");
    CHECK(kv::to_string(kv::per_sequence{5, 0.5}) == "budget(5, scope=global, floor=0.5)");
    CHECK(kv::to_string(kv::per_sequence{5}) == "budget(5, scope=global)");
    CHECK(kv::to_string(kv::drop_ratio{0.5}) == "budget(ratio=0.5)");
    CHECK(kv::to_string(kv::drop_ratio{0.5, kv::rounding::kvpress}) == "budget(ratio=0.5, rounding=kvpress)");
    CHECK(kv::to_string(kv::drop_ratio{0.5, kv::rounding::kvpress_0_5_4}) ==
          "budget(ratio=0.5, rounding=kvpress_0_5_4)");
    CHECK(kv::to_string(kv::in_bytes{7}) == "budget(bytes=7)");
    CHECK(kv::to_string(kv::unlimited{}) == "unlimited");
  }

  TEST_CASE("counts below 0, and parts that are not from 0 to 1, are refused") {
    std::string const below = "budget.tokens = -1, but a count cannot be negative";
    CHECK(refusal_of_part(kv::per_lane{-1}) == "here: " + below);
    CHECK(refusal_of_part(kv::per_layer{-1}) == "here: " + below);
    CHECK(refusal_of_part(kv::per_sequence{-1}) == "here: " + below);
    CHECK(refusal_of_part(kv::in_bytes{-1}) == "here: budget.bytes = -1, but a count cannot be negative");
    for (double const part : {-0.5, 1.5, not_a_number}) {
      CHECK(refusal_of_part(kv::per_layer{1, part}).find("but a floor is a part of the budget, 0 to 1") !=
            std::string::npos);
      CHECK(refusal_of_part(kv::per_sequence{1, part}).find("but a floor is a part of the budget, 0 to 1") !=
            std::string::npos);
      CHECK(refusal_of_part(kv::drop_ratio{part}).find("but a part is dropped, 0 to 1") != std::string::npos);
    }
    for (double const part : {0.0, 0.5, 1.0}) {
      CHECK(refusal_of_part(kv::per_layer{0, part}).empty());
      CHECK(refusal_of_part(kv::per_sequence{0, part}).empty());
      CHECK(refusal_of_part(kv::drop_ratio{part}).empty());
    }
    CHECK(refusal_of_part(kv::per_lane{0}).empty());
    CHECK(refusal_of_part(kv::in_bytes{0}).empty());
  }

  TEST_CASE("a budget that is chosen at run time is the typed one") {
    erases(kv::per_lane{5});
    erases(kv::per_layer{5, 0.3}, kv::budget_scope::layer, 0.3);
    erases(kv::per_layer{5, 0}, kv::budget_scope::layer);
    erases(kv::per_sequence{5, 0.7}, kv::budget_scope::sequence, 0.7);
    erases(kv::drop_ratio{0.9});
    erases(kv::drop_ratio{0.9, kv::rounding::kvpress});
    erases(kv::drop_ratio{0.9, kv::rounding::kvpress_0_5_4});
    erases(kv::in_bytes{6 * 32 * 10}, kv::budget_scope::lane, 0, kv::per_lane{10});
    erases(kv::unlimited{});
  }

  TEST_CASE("a budget that is chosen at run time refuses what the typed one refuses, and a floor that nobody shares") {
    CHECK(refusal_of_part(kv::any_budget(kv::per_lane{-1})) == refusal_of_part(kv::per_lane{-1}));
    CHECK(refusal_of_part(kv::any_budget(kv::per_layer{-1})) == refusal_of_part(kv::per_lane{-1}));
    CHECK(refusal_of_part(kv::any_budget(kv::per_layer{1, 1.5})) == refusal_of_part(kv::per_layer{1, 1.5}));
    CHECK(refusal_of_part(kv::any_budget(kv::drop_ratio{1.5})) == refusal_of_part(kv::drop_ratio{1.5}));
    CHECK(refusal_of_part(kv::any_budget(kv::in_bytes{-1})) == refusal_of_part(kv::in_bytes{-1}));
    CHECK(refusal_of_part(kv::any_budget(kv::unlimited{})).empty());
    CHECK(refusal_of_part(kv::any_budget(kv::per_sequence{0, 1})).empty());
    kv::any_budget alone(kv::per_lane{4});
    CHECK(refusal_of_part(alone).empty());
    alone.floor_part = 0.5;
    CHECK(refusal_of_part(alone) ==
          "here: budget.floor = 0.5, but a lane that shares with nobody has no floor: scope=layer or scope=global");
    // What is not read is not judged: the amount that counts is the one that is named.
    kv::any_budget named(kv::in_bytes{1});
    named.tokens = -1;
    named.drop = 2;
    CHECK(refusal_of_part(named).empty());
    named.of = kv::any_budget::amount::ratio;
    named.drop = 0.5;
    named.bytes = -1;
    CHECK(refusal_of_part(named).empty());
  }
}
