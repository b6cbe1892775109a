// SPDX-License-Identifier: Apache-2.0
// Names and texts from outside: a registry takes what a spec can say, and an error quotes what was found in one short
// line.

#include "support/test.hpp"

namespace names_test {

using namespace kvpolicy_test;

/// A protection, a scorer, a stage and a table whose names change from test to test.
enum class which { blank, bar, empty, dashed, field, value, section, fine };

template <which Which>
constexpr char const* name_for() {
  switch (Which) {
    case which::blank:
      return "two words";
    case which::bar:
      return "mine) | everything";
    case which::empty:
      return "";
    case which::dashed:
      return "a-b";
    case which::section:
      return "window";
    default:
      return "mine";
  }
}

template <which Which>
struct protection {
  kv::label of{};
  static constexpr auto name = name_for<Which>();
  static constexpr auto fields() {
    return kv::make_fields(kv::field{Which == which::field ? "my field" : "of", &protection::of});
  }
  bool operator()(kv::entry) const { return false; }
  friend bool operator==(protection const&, protection const&) = default;
};

template <which Which>
struct scorer {
  kv::label of{};
  static constexpr auto name = name_for<Which>();
  static constexpr auto fields() { return kv::make_fields(kv::field{"of", &scorer::of}); }
  using needs = kv::needs<>;
  static constexpr auto decides = kv::granularity::lane;
  void score(auto&, auto const&, kv::score_view const&) const {}
  friend bool operator==(scorer const&, scorer const&) = default;
};

template <class Part>
std::string refused(Part const& part) {
  kv::registry mine = kv::shipped();
  return error_of([&] { mine.add(part); });
}

TEST_SUITE("by_name/registry") {
  TEST_CASE("a registry refuses names, fields and values that no spec can say") {
    char const* const letters = "a name is of letters, digits and _ only";
    CHECK(refused(protection<which::blank>{}) == std::string("registry: name = two words, but ") + letters);
    CHECK(refused(protection<which::bar>{}) == std::string("registry: name = mine) | everything, but ") + letters);
    CHECK(refused(protection<which::dashed>{}) == std::string("registry: name = a-b, but ") + letters);
    CHECK(refused(scorer<which::empty>{}) == std::string("registry: name = , but ") + letters);
    CHECK(refused(scorer<which::blank>{}) == std::string("registry: name = two words, but ") + letters);
    CHECK(refused(protection<which::section>{}) ==
          "registry: name = window, but admissions and selections have a part of that name");
    CHECK(refused(protection<which::field>{}) ==
          "registry: mine's field = my field, but a spec says texts without blanks and , ( ) | =");
    CHECK(error_of([] { kv::shipped().table("my table", kv::by_lane<int const>{}); }) ==
          "registry: table = my table, but a spec says names of at most 31 characters, without blanks and , ( ) | =");
    kv::registry mine = kv::shipped();
    mine.add(protection<which::fine>{{"x"}});
    CHECK(kv::to_string(mine.parse("knorm | mine | budget(3)")) == "knorm | mine(of=x) | budget(3)");
  }

  TEST_CASE("a label prints as one value, whatever is in it") {
    kv::eviction const forged{.score = kv::external{{"x) | everything | (y="}}, .budget = kv::per_lane{3}};
    std::string const printed = kv::to_string(forged);
    CHECK(printed == "external(name=x????everything????y?) | budget(3)");
    CHECK(kv::split_spec(printed).size() == 2);
    kv::label endless;
    std::memset(endless.text, 'a', sizeof endless.text);
    CHECK(kv::to_string(endless) == std::string(sizeof endless.text, 'a'));
    kv::label to;
    for (char const* const wrong : {"a b", "a,b", "a(b", "a)b", "a|b", "a=b", "a\nb", "a\x7f"}) {
      CHECK_FALSE(read_text(wrong, to));
    }
    CHECK(read_text("surprise-2.0/ü;:", to));
    CHECK(kv::to_string(to) == "surprise-2.0/ü;:");
  }

  TEST_CASE("an error quotes at most 80 characters, and printable ones only") {
    auto const error = [](std::string const& spec) { return error_of([&] { (void)kv::parse(spec); }); };
    std::string const endless(5000, 'x');
    for (std::string const& spec :
         {endless, "knorm(" + endless + ")", "knorm | " + endless, "knorm | sinks(" + endless + ")",
          endless + ": knorm", "external(" + endless + "=3)", "external(name=" + endless + ")"}) {
      std::string const said = error(spec);
      CAPTURE(said);
      std::size_t const begin = said.find(" = ") + 3;
      CHECK(said.substr(begin, said.find(", but ") - begin) == std::string(77, 'x') + "...");
    }
    CHECK(error("knorm | \x1b[31m").starts_with("parse: column 9 = \\x1b, but "));
    CHECK(error("h2o(heavy=\x01\xff\x7f)") == "parse: column 11 = \\x01\\xff\\x7f, but h2o's heavy is an integer");
    CHECK(error("h2o(heavy=3ü)") == "parse: column 11 = 3\\xc3\\xbc, but h2o's heavy is an integer");
    CHECK(error("knorm(" + std::string(80, 'x') + ")").find(std::string(80, 'x') + ", but ") != std::string::npos);
  }

  TEST_CASE("a budget refuses each amount by its value") {
    auto const error = [](char const* spec) { return error_of([&] { (void)kv::parse(spec); }); };
    CHECK(error("knorm | budget(4, ratio=-1)") == "parse: column 9: budget.ratio = -1, but a part is dropped, 0 to 1");
    CHECK(error("knorm | budget(ratio=-1)") == "parse: column 9: budget.ratio = -1, but a part is dropped, 0 to 1");
    CHECK(error("knorm | budget(-1)").starts_with("parse: column 9: budget.tokens = -1, but "));
    CHECK(error("knorm | budget(4, bytes=-1)").starts_with("parse: column 9: budget.bytes = -1, but "));
    CHECK(error("knorm | budget(4, ratio=0)") ==
          "parse: column 9 = budget, but it says how much once: budget(1024), budget(ratio=0.5) or budget(bytes=N)");
    CHECK(error("h2o(3, heavy=4)") == "parse: column 8 = heavy, but that field was given before");
  }
}

}  // namespace names_test
