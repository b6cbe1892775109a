// SPDX-License-Identifier: Apache-2.0
// Policies chosen at run time decide, explain and force as the typed ones do; specs at the edges of their grammar.

#include "laws/refusal.hpp"
#include "support/specs.hpp"

namespace {

using namespace kvpolicy_test;

/// A lane of entries whose keys have the norms 1, 2, ..., so that knorm keeps the first ones.
struct rising_norms {
  mock_cache cache{{.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 12}};
  kv::host_executor exec;
  kv::cache view = cache.view();

  rising_norms() {
    std::vector<int> positions;
    for (int e = 0; e < 12; ++e) positions.push_back(e < 6 ? e : e + 3);
    cache.put({0, 0, 0}, positions);
    for (int e = 0; e < 12; ++e) cache.write(of::keys, {0, 0, 0}, e, {1.0 + e, 0, 0, 0});
  }
  template <class Policy>
  kv::plan<kv::host_executor> decided(Policy const& policy) {
    auto [state, plan] = kvpolicy_test::decided(exec, kv::signals{view.lanes, kv::keys_of(view)}, policy, view);
    return plan;
  }
  std::vector<int> kept(char const* spec) { return listed(decided(kv::parse(spec)).keep(), 0); }
};

std::string refusal(std::string const& spec) {
  return error_of([&] { (void)kv::parse(spec); });
}

/// A signal that no scorer of the library knows.
struct marks {
  static constexpr auto name = "marks";
  int number = 0;
};

}  // namespace

TEST_SUITE("by_name/any_policy") {
  TEST_CASE("an erased policy keeps what its spec says, forced entries and kinds of budget included") {
    rising_norms lane;  // twelve entries at positions 0 to 5 and 9 to 14
    using some = std::vector<int>;
    CHECK(lane.kept("knorm | budget(3)") == some{0, 1, 2});
    CHECK(lane.kept("knorm | recent(2) | budget(3)") == some{0, 10, 11});
    CHECK(lane.kept("knorm | span(9, 11) | budget(4)") == some{0, 1, 6, 7});
    CHECK(lane.kept("knorm | span(5, 10) | recent(1) | budget(4)") == some{0, 5, 6, 11});
    CHECK(lane.kept("knorm | safe(sinks=1, recent=1) | budget(3)") == some{0, 1, 11});
    CHECK(lane.kept("knorm | span(3, 4) | sinks(1) | span(14, 15) | budget(4)") == some{0, 1, 3, 11});
    CHECK(lane.kept("knorm | everything | budget(2)").size() == 12);
    CHECK(lane.kept("knorm | budget(ratio=0.75)") == some{0, 1, 2});
    CHECK(lane.kept("knorm | budget(ratio=0.9, rounding=kvpress)") == some{0});
    CHECK(lane.kept("knorm | budget(bytes=160)") == some{0, 1, 2, 3, 4});  // 32 bytes an entry: keys and values of four
    CHECK(lane.kept("knorm | unlimited").size() == 12);
    CHECK(lane.kept("knorm | budget(3) | over_budget(9)").size() == 12);
    CHECK(lane.kept("knorm | budget(3) | over_budget(8)") == some{0, 1, 2});
    CHECK(lane.kept("knorm | reduce_lanes(token, max) | budget(2)") == some{0, 1});
    CHECK(lane.kept("knorm | budget(2, scope=layer, floor=0.5)") == some{0, 1});
    CHECK(lane.kept("knorm | budget(2, scope=global)") == some{0, 1});
  }

  TEST_CASE("an erased policy explains and forces each entry as the typed one") {
    rising_norms lane;
    kv::eviction const typed{.score = kv::knorm{}, .protect = kv::sinks{1} | kv::recent{2}, .budget = kv::per_lane{5}};
    kv::any_policy const erased = typed;
    auto plan = lane.decided(typed);
    auto same = lane.decided(erased);
    for (int e = 0; e < 12; ++e) {
      CHECK(kv::explain(erased, same, 0, e) == kv::explain(typed, plan, 0, e));
      CHECK(kv::forces(erased, same, 0, e) == (e == 0 || e >= 10));
      CHECK(kv::forces(typed, plan, 0, e) == kv::forces(erased, same, 0, e));
    }
    CHECK(kv::explain(erased, same, 0, 2) ==
          "sequence 0, layer 0, head 0, entry 2 at position 2: kept; score -3 ranks 2 of 9, 2 were kept down to -3");
    kv::eviction const sinks{.score = kv::streaming_llm{2}, .budget = kv::per_lane{3}};
    kv::any_policy const forcing = sinks;
    auto third = lane.decided(forcing);
    for (int e = 0; e < 12; ++e) CHECK(kv::forces(forcing, third, 0, e) == (e < 2));
  }

  TEST_CASE("erased policies are equal if they are of one scorer and have the same parts") {
    kv::any_policy const one = kv::parse("knorm | sinks(2) | budget(7)");
    CHECK(one == kv::parse("knorm | budget(7) | sinks(2)"));
    CHECK(!(one == kv::parse("random | sinks(2) | budget(7)")));
    CHECK(!(one == kv::parse("knorm | sinks(2) | budget(8)")));
    CHECK(!(one == kv::parse("knorm | sinks(3) | budget(7)")));
    CHECK(!(one == kv::parse("knorm | sinks(2) | budget(7) | over_budget(1)")));
    CHECK(!(one == kv::parse("knorm | reduce_lanes(layer) | sinks(2) | budget(7)")));
    CHECK(kv::parse("tova | reduce_lanes(layer, max) | budget(7)") ==
          kv::parse("tova | budget(7)"));  // nothing to reduce
    CHECK(kv::to_string(kv::any_policy{}) == "full | unlimited");
    CHECK(one.decides() == kv::granularity::lane);
    CHECK(kv::parse("knorm | reduce_lanes(layer, max)").decides() == kv::granularity::layer);
  }
}

TEST_SUITE("by_name/any_policy") {
  TEST_CASE("an erased policy says which lanes share a budget") {
    auto const scope = [](char const* spec) { return kv::parse(spec).scope(); };
    CHECK(scope("knorm | budget(7)") == kv::budget_scope::lane);
    CHECK(scope("knorm | budget(ratio=0.5)") == kv::budget_scope::lane);
    CHECK(scope("knorm | budget(bytes=4096)") == kv::budget_scope::lane);
    CHECK(scope("knorm | budget(7, scope=layer)") == kv::budget_scope::layer);
    CHECK(scope("knorm | budget(ratio=0.5, scope=global)") == kv::budget_scope::sequence);
    CHECK(scope("full") == kv::budget_scope::lane);
    CHECK(kv::any_policy(kv::eviction{.score = kv::knorm{}, .budget = kv::per_layer{7}}).scope() ==
          kv::budget_scope::layer);
    CHECK(kv::any_policy(kv::eviction{.score = kv::knorm{}, .budget = kv::per_sequence{7}}).scope() ==
          kv::budget_scope::sequence);
    CHECK(kv::any_policy{}.scope() == kv::budget_scope::lane);
  }
}

TEST_SUITE("by_name/any_signals") {
  TEST_CASE("signals are found by name, listed in order, and a missing one is named") {
    rising_norms lane;
    kv::any_signals in(lane.view.lanes);
    CHECK(in.names() == "none");
    CHECK(in.find<kv::keys>() == nullptr);
    kv::keys const keys = kv::keys_of(lane.view);
    marks const mine{5};
    in.add(keys);
    CHECK(in.names() == "keys");
    CHECK(error_of([&] { (void)in.get<marks>(); }) == "signals: signals = keys, but signal marks is read");
    in.add(mine);
    CHECK(in.names() == "keys, marks");
    CHECK(&in.get<kv::keys>() == &keys);
    CHECK(in.get<marks>().number == 5);
    CHECK(in.has_all(kv::needs<kv::keys, marks>{}));
    CHECK(!in.has_all(kv::needs<kv::keys, kv::values>{}));
    in.check("here", lane.view.shape);  // marks have nothing to check
    kv::shape wide = lane.view.shape;
    wide.head_dim = 8;
    CHECK(error_of([&] { in.check("here", wide); }) == "here: keys.channels = 4, but the shape says 8 channels");
  }

  TEST_CASE("sixteen signals are carried, a seventeenth is refused") {
    rising_norms lane;
    kv::any_signals in(lane.view.lanes);
    marks const mine{1};
    for (int i = 0; i < 16; ++i) in.add(mine);
    CHECK(error_of([&] { in.add(mine); }) ==
          "any_signals: signals = 17, but an erased policy takes at most 16 signals");
  }
}

TEST_SUITE("by_name/spec") {
  TEST_CASE("blanks of every kind stand anywhere between words") {
    kv::any_policy const plain = kv::parse("snapkv(window=8,pool=max:5)|sinks(2)|budget(7)");
    for (std::string const blank : {" ", "\t", "\n", "\r", " \t\r\n "}) {
      std::string spec = "~snapkv~(~window~=~8~,~pool~=~max:5~)~|~sinks~(~2~)~|~budget~(~7~)~";
      for (std::size_t at = spec.find('~'); at != std::string::npos; at = spec.find('~')) spec.replace(at, 1, blank);
      CHECK(kv::parse(spec) == plain);
    }
    CHECK(refusal("knorm | sin ks(2)") == "parse: column 13 = k, but a part ends with (, | or ;");
  }

  TEST_CASE("a name is letters, digits and underscores, from the first to the last of them") {
    CHECK(refusal("azAZ09_ | budget(1)").starts_with("parse: column 1 = azAZ09_, but a policy begins with its scorer"));
    for (std::string const other : {"@", "[", "`", "{", "/", "-"}) {
      CHECK(refusal("knorm" + other) == "parse: column 6 = " + other + ", but a part ends with (, | or ;");
    }
  }

  TEST_CASE("a value ends at a blank, a comma, a bracket, a bar or an equals sign") {
    says(refusal, "parse: ")({
        {"knorm | sinks(4(", "column 16 = (, but arguments end with , or )"},
        {"knorm | sinks(4|", "column 16 = |, but arguments end with , or )"},
        {"knorm | sinks(4 4)", "column 17 = 4, but arguments end with , or )"},
        {"knorm | sinks(,4)", "column 15 = ,, but an argument is a value or field=value"},
    });
  }

  TEST_CASE("a name that is far from every other, or longer than any could be, is nobody's misspelling") {
    CHECK(refusal("knorn").ends_with("did you mean knorm?"));
    CHECK(!refusal("zzzzz").ends_with("?"));
    std::string const long_name = "knorm" + std::string(59, 'x');
    CHECK(!refusal(long_name).ends_with("?"));
    CHECK(!refusal(long_name + "x").ends_with("?"));
    std::string const far = "streaming_llm" + std::string(11, '_');  // 11 of 24 letters are wrong
    CHECK(refusal(far).ends_with("did you mean streaming_llm?"));
  }

  TEST_CASE("pools that are no number or stop in the middle of one are refused") {
    for (std::string const pool : {"max:", "max:x", "avg:3x", "avg:99999999999", "min:3", "ma"}) {
      CHECK(refusal("snapkv(pool=" + pool + ")") ==
            "parse: column 13 = " + pool + ", but snapkv's pool is max:K, avg:K (K odd) or none");
    }
    CHECK(kv::to_string(kv::parse("snapkv(pool=none) | budget(1)")).find("pool=none") != std::string::npos);
    CHECK(kv::to_string(kv::parse("snapkv(pool=avg:3) | budget(1)")).find("pool=avg:3") != std::string::npos);
  }
}
