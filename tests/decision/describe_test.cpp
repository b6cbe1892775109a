// SPDX-License-Identifier: Apache-2.0
// describe: what the library understood of a policy.
#include "support/test.hpp"

namespace describe_test {

namespace kv = kvpolicy;

/// A user's scorer with a protection and a trigger of its own, none of which has a name.
struct mine {
  struct first_entry {
    bool operator()(kv::entry at) const { return at.ordinal == 0; }
    friend bool operator==(first_entry const&, first_entry const&) = default;
  };
  struct never {
    bool operator()(int, int) const { return false; }
    friend bool operator==(never const&, never const&) = default;
  };
  using needs = kv::needs<kv::keys, kv::attention_mass>;
  static constexpr kv::granularity decides = kv::granularity::layer;
  [[nodiscard]] constexpr first_entry forces() const { return {}; }
  [[nodiscard]] constexpr never triggers() const { return {}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{kv::record_attention_mass{}}; }
  void score(auto&, auto const&, kv::score_view const&) const {}
  friend bool operator==(mine const&, mine const&) = default;
};

TEST_SUITE("decision/describe") {
  TEST_CASE("an eviction is told part by part") {
    auto const policy =
        kv::eviction{.score = kv::snapkv{.window = 8}, .protect = kv::sinks{4}, .budget = kv::per_layer{64}};
    kv::description const told = kv::describe(policy);
    CHECK(told.policy == to_string(policy));
    CHECK(told.decides == "lane");
    CHECK(told.reads == std::vector<std::string>{"keys", "recent_queries"});
    CHECK(told.records == std::vector<std::string>{"recent_queries from queries"});
    CHECK(told.forces == std::vector<std::string>{"the scorer's recent(8)", "sinks(4)"});
    CHECK(told.budget == "budget(64, scope=layer, floor=0.2), pooled by the lanes of a layer");
    CHECK(told.pick == "top");
    CHECK(told.triggers == std::vector<std::string>{"over_budget(0)"});
  }

  TEST_CASE("hooks of a user's types without names are told all the same") {
    kv::description const told = kv::describe(kv::eviction{.score = mine{}, .budget = kv::unlimited{}});
    CHECK(told.decides == "layer");
    CHECK(told.reads == std::vector<std::string>{"keys", "attention_mass"});
    CHECK(told.records ==
          std::vector<std::string>{
              "attention_mass from keys or attention_probabilities, queries or attention_probabilities"});
    CHECK(told.forces == std::vector<std::string>{"the scorer's own entries"});
    CHECK(told.triggers == std::vector<std::string>{"over_budget(0)", "the scorer's own trigger"});
  }

  TEST_CASE("an admission and a selection are told by the same words") {
    kv::description const admission = kv::describe(kv::policies::wg_kv({.window = 256}));
    CHECK(admission.reads == std::vector<std::string>{"admission_gate"});
    CHECK(admission.triggers == std::vector<std::string>{"leaving a window of 256"});
    kv::description const selection = kv::describe(kv::selection{.score = kv::quest{}, .dense_layers = 3});
    CHECK(selection.forces == std::vector<std::string>{"each lane's last page, all pages of the first 3 layers"});
    CHECK(selection.triggers.empty());
  }

  TEST_CASE("what is printed names every part, a line each") {
    CHECK(print(kv::describe(kv::eviction{.score = kv::streaming_llm{}, .budget = kv::per_lane{100}})) ==
          "streaming_llm(sinks=4) | budget(100)\n"
          "  decides by: lane\n"
          "  reads: nothing\n"
          "  records: nothing\n"
          "  always keeps: the scorer's sinks(4)\n"
          "  budget: budget(100), for each lane\n"
          "  picks: top\n"
          "  acts when: over_budget(0)");
  }
}

}  // namespace describe_test
