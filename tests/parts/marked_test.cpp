// SPDX-License-Identifier: Apache-2.0
// Protections by the prompt and by the classes of tokens.
#include "support/kept_lists.hpp"

namespace marked_test {

using namespace kvpolicy_test;

/// Two sequences of two lanes of 16 entries, at every third position or so.
struct two_sequences : decided_cache {
  std::vector<int> prompt_end{20, 0};
  std::vector<int> classes;
  kv::by_lane<int const> ends{prompt_end.data(), 1};
  kv::by_lane<int const> table;

  two_sequences()
      : decided_cache(
            {.model = {.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .sequences = 2, .bound = 16}) {
    dice random(11);
    for (int i = 0; i < 2 * 64; ++i) classes.push_back(random.below(4));
    table = {classes.data(), 64};
    for (int i = 0; i < cache.lane_count(); ++i) {
      cache.put(cache.lane_at(i), random.subset(50, 16));
      for (int e = 0; e < 16; ++e) cache.write(of::keys, cache.lane_at(i), e, {random.below(99) / 8.0, 0, 0, 0});
    }
  }
};

TEST_SUITE("parts/marked") {
  TEST_CASE("all entries of the prompt and of the class are kept, and the budget counts them") {
    two_sequences batch;
    auto const policy = kv::eviction{.score = kv::knorm{},
                                     .protect = kv::prompt{batch.ends} | kv::marks{2, batch.table},
                                     .budget = kv::per_lane{12}};
    auto const lists = batch.kept(policy);
    for (int i = 0; i < batch.cache.lane_count(); ++i) {
      kv::lane const one = batch.cache.lane_at(i);
      int forced = 0;
      for (int e = 0; e < 16; ++e) {
        int const position = batch.view.lanes.position.row(one)[e];
        bool const marked = batch.classes[as_size(64 * one.sequence + position)] == 2;
        bool const stays = position < batch.prompt_end[as_size(one.sequence)] || marked;
        forced += stays ? 1 : 0;
        auto const& kept = lists[as_size(i)];
        if (stays) CHECK(std::find(kept.begin(), kept.end(), e) != kept.end());
      }
      CHECK(static_cast<int>(lists[as_size(i)].size()) == std::max(12, forced));
    }
  }

  TEST_CASE("by name they read the tables of the registry, and decide alike") {
    two_sequences batch;
    kv::registry known = kv::shipped();
    known.table("prompt_end", batch.ends).table("token_class", batch.table);
    auto const same = [&](char const* text, auto const& typed) {
      CAPTURE(text);
      auto const named = known.parse(text);
      CHECK(kv::to_string(named) == text);
      CHECK(named == known.parse(kv::to_string(named)));
      CHECK(batch.kept(named) == batch.kept(typed));
    };
    same("knorm | prompt | budget(9)",
         kv::eviction{.score = kv::knorm{}, .protect = kv::prompt{batch.ends}, .budget = kv::per_lane{9}});
    same("knorm | marks(class=1) | recent(2) | marks(class=3) | budget(9)",
         kv::eviction{.score = kv::knorm{},
                      .protect = kv::marks{1, batch.table} | kv::recent{2} | kv::marks{3, batch.table},
                      .budget = kv::per_lane{9}});
    CHECK_FALSE(known.parse("knorm | prompt") == known.parse("knorm"));
    for (char const* text :
         {"admit: write_gate | prompt | marks(2) | window(8)", "select: quest | prompt | budget(16)"}) {
      auto const named = kv::parse_cache_policy(text, known);
      CHECK(named == kv::parse_cache_policy(kv::to_string(named), known));
    }
    CHECK(error_of([] { (void)kv::parse("knorm | prompt"); }) ==
          "parse: column 9 = prompt, but the table prompt_end is given to the registry by its name");
    CHECK(error_of([] { (void)kv::parse("knorm | marks(1)"); }) ==
          "parse: column 9 = marks, but the table token_class is given to the registry by its name");
    CHECK(error_of([&] { (void)known.parse("knorm | marks(32)"); }) ==
          "parse: column 9: marks.class = 32, but there are 32 classes of tokens, 0 to 31");
    kv::eviction const without{.score = kv::knorm{}, .protect = kv::prompt{}, .budget = kv::per_lane{9}};
    CHECK(error_of([&] { (void)kv::make_plan(batch.exec, without, batch.view); }) ==
          "make_plan: prompt.end = null, but the engine has the end of every sequence's prompt");
  }
}

}  // namespace marked_test
