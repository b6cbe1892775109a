// SPDX-License-Identifier: Apache-2.0
// Protections, budgets, picks and triggers of a program's own: each joins a registry by one line.
#include "support/kept_lists.hpp"
#include "support/specs.hpp"

namespace own_parts_test {

using namespace kvpolicy_test;

/// Protects every n-th position.
struct every_nth {
  int n = 4;
  static constexpr auto name = "every_nth";
  static constexpr auto fields() { return std::tuple{kv::field{"n", &every_nth::n}}; }
  void check(char const* call) const { kv::expects(n >= 1, call, "every_nth.n", n, "it is at least 1"); }
  bool operator()(kv::entry at) const { return at.position % n == 0; }
  friend bool operator==(every_nth const&, every_nth const&) = default;
};

/// Later layers have less; lanes of a layer share.
struct less_by_layer {
  int most = 8;
  static constexpr auto name = "less_by_layer";
  static constexpr auto fields() { return std::tuple{kv::field{"most", &less_by_layer::most}}; }
  int operator()(kv::lane of, int) const { return most - 2 * of.layer; }
  static constexpr kv::budget_scope scope() { return kv::budget_scope::layer; }
  static constexpr int floor(int share) { return share / 2; }
  friend bool operator==(less_by_layer const&, less_by_layer const&) = default;
};

/// Keeps scores below a limit, which no shipped pick does.
struct below {
  float limit = 0;
  static constexpr auto name = "below";
  static constexpr auto fields() { return std::tuple{kv::field{"limit", &below::limit}}; }
  bool operator()(float score) const { return score < limit; }
  friend bool operator==(below const&, below const&) = default;
};

/// Fires at even counts; a pool of lanes never fires.
struct at_even {
  static constexpr auto name = "at_even";
  static constexpr auto fields() { return std::tuple{}; }
  bool operator()(int count, int allowed) const { return count % 2 == 0 && count > allowed; }
  bool operator()(int, int, int) const { return false; }
  friend bool operator==(at_even const&, at_even const&) = default;
};

/// Its name is the library's.
struct recent_again {
  static constexpr auto name = "recent";
  static constexpr auto fields() { return std::tuple{}; }
  bool operator()(kv::entry) const { return false; }
  friend bool operator==(recent_again const&, recent_again const&) = default;
};

kv::registry with_mine() { return kv::shipped().add(every_nth{}).add(less_by_layer{}).add(below{}).add(at_even{}); }

/// Two layers of two lanes, of 12 and 13 entries.
struct four_lanes : decided_cache {
  four_lanes() : decided_cache({.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = 13}) {
    for (int i = 0; i < cache.lane_count(); ++i) {
      cache.put(cache.lane_at(i), up_to(12 + i % 2));
      for (int e = 0; e < 12 + i % 2; ++e)
        cache.write(of::keys, cache.lane_at(i), e, {(e * 7 + i) % 13 / 8.0, 0, 0, 0});
    }
  }
};

/// A policy by name decides as the typed one, prints the text, and reads back.
template <class Typed>
void same(char const* text, Typed const& typed) {
  CAPTURE(text);
  four_lanes lanes;
  kv::registry const mine = with_mine();
  auto const named = mine.parse(text);
  CHECK(kv::to_string(named) == text);
  CHECK(named == mine.parse(kv::to_string(named)));
  auto const copy = named;
  CHECK(copy == named);
  CHECK(lanes.kept(copy) == lanes.kept(typed));
}

TEST_SUITE("by_name/user_parts") {
  TEST_CASE("each kind decides by name as it does typed") {
    same("knorm | every_nth(n=3) | budget(6)",
         kv::eviction{.score = kv::knorm{}, .protect = every_nth{3}, .budget = kv::per_lane{6}});
    same("knorm | sinks(1) | every_nth(n=5) | recent(2) | every_nth(n=4) | budget(9)",
         kv::eviction{.score = kv::knorm{},
                      .protect = kv::sinks{1} | every_nth{5} | kv::recent{2} | every_nth{4},
                      .budget = kv::per_lane{9}});
    same("knorm | less_by_layer(most=7)", kv::eviction{.score = kv::knorm{}, .budget = less_by_layer{7}});
    same("knorm | unlimited | below(limit=-0.5)",
         kv::eviction{.score = kv::knorm{}, .budget = kv::unlimited{}, .pick = below{-0.5f}});
    same("knorm | budget(6) | at_even",
         kv::eviction{.score = kv::knorm{}, .budget = kv::per_lane{6}, .trigger = at_even{}});
    same("knorm | budget(6, scope=layer) | at_even",
         kv::eviction{.score = kv::knorm{}, .budget = kv::per_layer{6, 0}, .trigger = at_even{}});
  }

  TEST_CASE("parts differ by their fields") {
    kv::registry const mine = with_mine();
    CHECK_FALSE(mine.parse("knorm | every_nth(3)") == mine.parse("knorm | every_nth(4)"));
    CHECK_FALSE(mine.parse("knorm | less_by_layer(3)") == mine.parse("knorm | less_by_layer(4)"));
    CHECK_FALSE(mine.parse("knorm | below(3)") == mine.parse("knorm | below(4)"));
    CHECK_FALSE(mine.parse("knorm | budget(3) | at_even") == mine.parse("knorm | budget(3)"));
  }

  TEST_CASE("admissions take protections, and selections budgets and picks") {
    kv::registry const mine = with_mine();
    for (char const* text : {"admit: write_gate | every_nth(2) | window(8)", "select: quest | page(4) | below(0.5)"}) {
      CAPTURE(text);
      auto const named = kv::parse_cache_policy(text, mine);
      CHECK(named == kv::parse_cache_policy(kv::to_string(named), mine));
    }
    auto const refused = [&](char const* text) { return error_of([&] { (void)kv::parse_cache_policy(text, mine); }); };
    CHECK(refused("select: quest | less_by_layer(3)") ==
          "parse: column 17: budget.scope = layer, but every lane reads for itself");
    CHECK(
        refused("select: quest | every_nth(2)") ==
        "parse: column 17 = every_nth, but a selection has the parts page, budget, unlimited, dense, inherit, "
        "top, at_least, at_least_table, sinks, recent, span, safe, everything, prompt, marks, less_by_layer and below");
  }

  TEST_CASE("bad fields, unknown parts and names that are taken are refused by name") {
    kv::registry const mine = with_mine();
    auto const refused = [&](char const* text) { return error_of([&] { (void)mine.parse(text); }); };
    says(refused, "parse: ")({
        {"knorm | every_nth(0)", "column 9: every_nth.n = 0, but it is at least 1"},
        {"knorm | below(1) | at_least(0)", "column 20 = at_least, but there is one before, at column 9"},
        {"knorm | below(1) | budget(4)", "column 20 = budget, but below keeps however many entries there are"},
    });
    CHECK(refused("knorm | evry_nth(1)").find("every_nth") != std::string::npos);
    CHECK(error_of([] { (void)with_mine().add(below{}); }) ==
          "registry: name = below, but there is a part of that name");
    CHECK(error_of([] { (void)kv::shipped().add(recent_again{}); }) ==
          "registry: name = recent, but there is a part of that name");
  }
}

}  // namespace own_parts_test
