// SPDX-License-Identifier: Apache-2.0
// Protections: what each keeps, what is refused, and that one chosen at run time keeps the same.

#include "laws/refusal.hpp"

namespace {

using namespace kvpolicy_test;

/// Every entry of lanes of up to six entries, whose positions have a hole behind the first.
std::vector<kv::entry> some_entries() {
  std::vector<kv::entry> all;
  for (int count = 1; count <= 6; ++count) {
    for (int e = 0; e < count; ++e) {
      for (int const gap : {0, 1, 5}) all.push_back({{}, e, count, e == 0 ? 0 : e + gap, 3});
    }
  }
  return all;
}

/// Typed, erased, and as a decision asks: the entries that `wanted` says, and no others.
template <class Protect, class Wanted>
void protects(Protect const& protect, Wanted const& wanted) {
  kv::any_protection const erased(protect);
  INFO(kv::to_string(protect));
  for (kv::entry const at : some_entries()) {
    INFO("ordinal ", at.ordinal, " of ", at.count, " at position ", at.position);
    CHECK(protect(at) == wanted(at));
    CHECK(erased(at) == wanted(at));
    bool asked = !wanted(at);
    erased.pick([&](auto const& picked) { asked = picked(at); });
    CHECK(asked == wanted(at));
  }
}

}  // namespace

TEST_SUITE("parts/protect") {
  TEST_CASE("each protection keeps what its name says") {
    auto const none = [](kv::entry) { return false; };
    auto const all = [](kv::entry) { return true; };
    protects(kv::nothing{}, none);
    protects(kv::everything{}, all);
    for (int n : {0, 1, 2, 6, 7, 100}) {
      auto const early = [n](kv::entry at) { return at.position < n; };
      auto const late = [n](kv::entry at) { return at.ordinal >= at.count - n; };
      protects(kv::sinks{n}, early);
      protects(kv::recent{n}, late);
      protects(kv::safe{n, 2}, [&](kv::entry at) { return early(at) || at.ordinal >= at.count - 2; });
      protects(kv::safe{1, n}, [&](kv::entry at) { return late(at) || at.position < 1; });
      protects(kv::safe{0, n}, late);
      protects(kv::position_span{2, 2 + n}, [&](kv::entry at) { return at.position >= 2 && at.position < 2 + n; });
    }
    CHECK(kv::sinks{}.tokens == 4);
    CHECK(kv::recent{}.tokens == 32);
    CHECK(kv::safe{} == kv::safe{4, 32});
  }

  TEST_CASE("joined protections keep what any of them keeps") {
    protects(kv::sinks{1} | kv::recent{2}, [](kv::entry at) { return at.position < 1 || at.ordinal >= at.count - 2; });
    protects(kv::recent{1} | kv::recent{3} | kv::recent{2}, [](kv::entry at) { return at.ordinal >= at.count - 3; });
    protects(kv::sinks{1} | kv::sinks{3} | kv::sinks{2}, [](kv::entry at) { return at.position < 3; });
    protects(kv::position_span{1, 2} | kv::position_span{4, 5} | kv::sinks{1},
             [](kv::entry at) { return at.position < 2 || at.position == 4; });
    protects(kv::position_span{1, 2} | kv::recent{1},
             [](kv::entry at) { return at.position == 1 || at.ordinal == at.count - 1; });
    protects(kv::sinks{1} | kv::everything{}, [](kv::entry) { return true; });
    protects(kv::everything{} | kv::position_span{1, 2}, [](kv::entry) { return true; });
    protects(kv::nothing{} | kv::safe{1, 1},
             [](kv::entry at) { return at.position < 1 || at.ordinal == at.count - 1; });
  }

  TEST_CASE("without spans a decision is told which run of entries competes, by a shipped protection") {
    std::string asked;
    auto const name = [&](auto const& picked) { asked = kv::to_string(picked); };
    kv::any_protection(kv::sinks{3}).pick(name);
    CHECK(asked == "sinks(3)");
    kv::any_protection(kv::nothing{}).pick(name);
    CHECK(asked == "sinks(0)");
    kv::any_protection(kv::recent{1}).pick(name);
    CHECK(asked == "safe(sinks=0, recent=1)");
    kv::any_protection(kv::sinks{3} | kv::safe{2, 5} | kv::recent{4}).pick(name);
    CHECK(asked == "safe(sinks=3, recent=5)");
    kv::any_protection(kv::everything{}).pick([](auto const& picked) {
      int const position[] = {0, 1, 2, 3, 4, 5, 6};
      kv::lane_entries const of{{}, 7, 0, position};
      if constexpr (requires { picked.candidates(of); }) CHECK(picked.candidates(of).end <= 0);
    });
    kv::any_protection(kv::sinks{3} | kv::position_span{5, 6}).pick(name);
    CHECK(asked == "unnamed");
  }

  TEST_CASE("protections print their parts in order") {
    CHECK(kv::to_string(kv::sinks{1} | kv::position_span{2, 3}) == "sinks(1) | span(2, 3)");
    CHECK(kv::to_string(kv::any_protection(kv::sinks{1} | kv::position_span{2, 3} | kv::safe{4, 5} | kv::recent{6})) ==
          "sinks(1) | span(2, 3) | safe(sinks=4, recent=5) | recent(6)");
    CHECK(kv::to_string(kv::any_protection(kv::everything{})) == "everything");
    CHECK(kv::to_string(kv::any_protection{}).empty());
  }

  TEST_CASE("counts below 0 and spans that end before they begin are refused, typed, joined and erased") {
    auto const refuses = [](auto const& protect, std::string const& text) {
      CHECK(refusal_of_part(protect) == "here: " + text);
      CHECK(refusal_of_part(kv::any_protection(protect)) == "here: " + text);
      CHECK(refusal_of_part(kv::sinks{1} | protect) == "here: " + text);
      CHECK(refusal_of_part(protect | kv::nothing{}) == "here: " + text);
    };
    refuses(kv::sinks{-1}, "sinks.tokens = -1, but a count cannot be negative");
    refuses(kv::recent{-1}, "recent.tokens = -1, but a count cannot be negative");
    refuses(kv::safe{-1, 1}, "safe.sinks = -1, but a count cannot be negative");
    refuses(kv::safe{1, -1}, "safe.recent = -1, but a count cannot be negative");
    refuses(kv::position_span{-1, 1}, "span.begin = -1, but positions start at 0");
    refuses(kv::position_span{3, 2}, "span.end = 2, but a span does not end before it begins (3)");
    CHECK(refusal_of_part(kv::sinks{0} | kv::recent{0} | kv::safe{0, 0} | kv::position_span{0, 0}).empty());
    CHECK(refusal_of_part(kv::any_protection(kv::sinks{0} | kv::recent{0} | kv::safe{0, 0} | kv::position_span{0, 0}))
              .empty());
  }

  TEST_CASE("eight protections are joined at run time, a ninth is refused") {
    kv::any_protection eight;
    for (int i = 0; i < kv::any_protection::most; ++i) eight.add(kv::position_span{10 * i, 10 * i + 1});
    CHECK(eight.count == 8);
    CHECK(eight({{}, 0, 100, 70, 0}));
    CHECK(!eight({{}, 0, 100, 71, 0}));
    CHECK(error_of([&] { eight.add(kv::sinks{1}); }) ==
          "any_protection: protections = 9, but at most eight are joined");
    CHECK(eight.count == 8);
  }
}
