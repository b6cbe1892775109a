// SPDX-License-Identifier: Apache-2.0
// at_least_table: a threshold for each lane, typed and by name, in evictions, admissions and selections.

#include "support/specs.hpp"

namespace {

using namespace kvpolicy_test;

float const thresholds[] = {-2, -1, -3, 0};  // of two layers of two heads

kv::registry with_table() {
  kv::registry known = kv::shipped();
  known.table("least", kv::by_lane<float const>{thresholds, 0, 2, 1});
  return known;
}

TEST_SUITE("by_name/thresholds") {
  TEST_CASE("each lane keeps what reaches its number, typed and by name") {
    holds("any norms", 60, [] {
      mock_cache cache({.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = 80});
      dice random(*rc::gen::inRange<std::uint64_t>(1, 1000));
      for (int i = 0; i < 4; ++i) {
        cache.put(cache.lane_at(i), up_to(*rc::gen::inRange(0, 81)));
        for (int e = 0; e < cache.committed(cache.lane_at(i)); ++e) {
          double const norm = random.below(10) == 0 ? std::nan("") : random.below(33) / 8.0;
          cache.write(of::keys, cache.lane_at(i), e, {norm, 0, 0, 0});
        }
      }
      bool const strict = any_bool();
      kv::at_least_table const pick{{{"least"}}, strict, {thresholds, 0, 2, 1}};
      kv::eviction const typed{.score = kv::knorm{}, .protect = kv::sinks{2}, .budget = kv::unlimited{}, .pick = pick};
      kv::any_policy const named = with_table().parse(std::string("knorm | sinks(2) | at_least_table(least") +
                                                      (strict ? ", strict=true)" : ")"));
      kv::host_executor exec(*rc::gen::element(1, 3), *rc::gen::elementOf(vector_isas()));
      auto const decide = [&](auto const& policy) {
        auto [state, plan] = decided(exec, kv::signals{cache.lanes(), kv::keys_of(cache.view())}, policy, cache.view());
        std::vector<std::vector<int>> kept;
        for (int i = 0; i < 4; ++i) kept.push_back(listed(plan.keep(), i));
        return kept;
      };
      auto const kept = decide(typed);
      RC_ASSERT(decide(named) == kept);
      for (int i = 0; i < 4; ++i) {
        std::vector<int> expected;
        auto const rows = cache.rows(of::keys, cache.lane_at(i), cache.committed(cache.lane_at(i)));
        for (std::size_t e = 0; e < rows.size(); ++e) {
          float const score = -static_cast<float>(rows[e][0]);
          if (e < 2 || (strict ? score > thresholds[i] : score >= thresholds[i]))
            expected.push_back(static_cast<int>(e));
        }
        RC_ASSERT(kept[as_size(i)] == expected);
      }
    });
  }

  TEST_CASE("it prints and reads back in every section, and is refused without its table") {
    kv::registry const known = with_table();
    for (char const* const text : {"knorm | unlimited | at_least_table(table=least, strict=false)",
                                   "knorm | sinks(4) | unlimited | at_least_table(table=least, strict=true)"}) {
      CHECK(kv::to_string(known.parse(text)) == text);
      CHECK(known.parse(text) == known.parse(kv::to_string(known.parse(text))));
    }
    for (char const* const text : {"admit: write_gate | at_least_table(table=least, strict=false) | window(16)",
                                   "select: quest(page=16, group=max, bounds=f32) | unlimited | "
                                   "at_least_table(table=least, strict=true) | dense(2)"}) {
      CHECK(kv::to_string(kv::parse_cache_policy(text, known)) == text);
      CHECK(kv::parse_cache_policy(text, known) == kv::parse_cache_policy(text, known));
    }
    CHECK_FALSE(known.parse("knorm | at_least_table(least)") == known.parse("knorm | at_least_table(least, true)"));
    auto const error = [&](char const* text) { return error_of([&] { (void)kv::parse_cache_policy(text, known); }); };
    says(error, "parse: ")({
        {"knorm | at_least_table(other)", "column 24 = other, but a table is given to the registry by its name"},
        {"admit: write_gate | at_least_table(table=other)",
         "column 42 = other, but a table is given to the registry by its name"},
        {"select: quest | at_least_table(other)",
         "column 32 = other, but a table is given to the registry by its name"},
        {"knorm | at_least_table", "column 9 = at_least_table, but it says which table of the registry it reads"},
        {"knorm | at_least_table(least) | budget(9)",
         "column 33 = budget, but at_least_table keeps however many entries there are"},
        {"admit: write_gate | at_least(0.5) | at_least_table(least)",
         "column 37 = at_least_table, but there is one before, at column 21"},
    });
    kv::at_least_table const none{};
    CHECK(error_of([&] { none.check("decide"); }) ==
          "decide: at_least_table.table = null, but scores are compared with its numbers");
  }
}

}  // namespace
