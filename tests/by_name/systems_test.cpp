// SPDX-License-Identifier: Apache-2.0
// Systems beside every part of a spec: what a policy says is what it does, or the spec is refused where it is wrong.

#include <cctype>
#include <charconv>

#include "support/specs.hpp"
#include "support/words.hpp"

namespace systems_test {

using namespace kvpolicy_test;

/// Parts of a program's own, one of each kind that a spec may have beside a scorer.
struct every_nth {
  int n = 4;
  static constexpr auto name = "every_nth";
  static constexpr auto fields() { return kv::make_fields(kv::field{"n", &every_nth::n}); }
  bool operator()(kv::entry at) const { return at.position % n == 0; }
  friend bool operator==(every_nth const&, every_nth const&) = default;
};
struct less_by_layer {
  int most = 8;
  static constexpr auto name = "less_by_layer";
  static constexpr auto fields() { return kv::make_fields(kv::field{"most", &less_by_layer::most}); }
  int operator()(kv::lane of, int) const { return most - of.layer; }
  friend bool operator==(less_by_layer const&, less_by_layer const&) = default;
};
struct below {
  float limit = 0;
  static constexpr auto name = "below";
  static constexpr auto fields() { return kv::make_fields(kv::field{"limit", &below::limit}); }
  bool operator()(float score) const { return score < limit; }
  friend bool operator==(below const&, below const&) = default;
};
struct at_even {
  static constexpr auto name = "at_even";
  static constexpr auto fields() { return kv::make_fields(); }
  bool operator()(int count, int allowed) const { return count % 2 == 0 && count > allowed; }
  friend bool operator==(at_even const&, at_even const&) = default;
};

/// A system of an admission of a program's own, which caps what it admits.
struct capped {
  int most = 9;
  static constexpr auto name = "capped";
  static constexpr auto fields() { return kv::make_fields(kv::field{"most", &capped::most}); }
  [[nodiscard]] kv::admission<kv::write_gate> admission() const { return {.window = 4, .cap = most}; }
  friend bool operator==(capped const&, capped const&) = default;
};

int const shares[] = {3, 1, 2, 5};
float const importance[] = {1, 2};

kv::registry with_mine() {
  kv::registry known = kv::shipped().add(every_nth{}).add(less_by_layer{}).add(below{}).add(at_even{});
  known.table("lu_kv", kv::by_lane<int const>{shares, 0, 2, 1});
  known.table("other", kv::by_lane<int const>{shares, 0, 2, 1});
  known.table("token_class", kv::by_lane<int const>{shares});
  known.table("weights", kv::by_lane<float const>{importance, 0, 1, 0});
  known.table("q_filters", kv::rows_of_heads{{importance, 0, 0, 0}, 2});
  known.table("thresholds", kv::rows_of_heads{{importance, 0, 0, 0}, 2});
  known.table("voters", kv::rows_of_heads{{importance, 0, 0, 0}, 2});
  known.table("drift", kv::by_lane<float const>{importance, 0, 1, 0});
  known.table("importance", kv::by_lane<float const>{importance, 0, 1, 0});
  return known;
}

std::string number(dice& random) { return random.one_of<std::string>({"0", "0.25", "0.333", "1", "-1", "7"}); }
std::string count(dice& random) { return random.one_of<std::string>({"0", "1", "3", "40", "2048", "-1"}); }

/// A value of a field, by the type that its listing names.
std::string value_for(dice& random, kv::field_info const& field) {
  if (field.type == "an integer") return count(random);
  if (field.type == "a number") return number(random);
  if (field.type == "true or false") return random.one_of<std::string>({"true", "false"});
  if (field.type.starts_with("max:K")) return random.one_of<std::string>({"none", "max:5", "avg:3"});
  if (field.type.starts_with("a name")) return random.one_of<std::string>({"mine", "lu_kv", "other", ""});
  std::vector<std::string> words;
  std::string word;
  for (char const each : field.type + " ") {
    if (std::isalpha(static_cast<unsigned char>(each)) || each == '_') {
      word += each;
    } else {
      if (!word.empty() && word != "or") words.push_back(word);
      word.clear();
    }
  }
  return random.one_of(words);
}

/// A scorer or a system, with some of its fields.
std::string any_front(dice& random, std::vector<kv::scorer_info> const& all) {
  std::vector<std::string> const systems{"pyramid_kv", "nacl",       "sir_llm",    "lu_kv",
                                         "locret",     "side_quest", "simlayer_kv"};
  std::string const chosen = random.chance(80) ? random.one_of(systems) : "";
  kv::scorer_info const* one = &all[as_size(random.below(static_cast<int>(all.size())))];
  for (kv::scorer_info const& each : all) {
    if (each.name == chosen) one = &each;
  }
  std::string text = one->name;
  std::string open = "(";
  for (kv::field_info const& field : one->fields) {
    bool const needed = field.name == "scores" && random.chance(90);
    if (!needed && !random.chance(15)) continue;
    text += open + field.name + "=" + (needed ? "mine" : value_for(random, field));
    open = ", ";
  }
  return open == "(" ? text : text + ")";
}

std::string any_limit(dice& random) {
  if (random.chance(10)) return "unlimited";
  if (random.chance(8)) return "less_by_layer(" + count(random) + ")";
  std::string text = "budget(" + random.one_of<std::string>({"40", "ratio=0.5", "bytes=40960", count(random)});
  if (random.chance(25)) text += ", scope=" + random.one_of<std::string>({"lane", "layer", "global"});
  if (random.chance(10)) text += ", floor=" + number(random);
  if (random.chance(5)) text += ", floor_tokens=" + count(random);
  if (random.chance(8)) text += ", rounding=" + random.one_of<std::string>({"exact", "kvpress", "kvpress_0_5_4"});
  if (random.chance(40)) {
    text += ", by=" + random.one_of<std::string>({"fixed", "ramp", "table", "importance", "seen"});
  }
  if (random.chance(15)) text += ", beta=" + random.one_of<std::string>({"20", "7.5"});
  if (random.chance(10)) text += ", rule=" + random.one_of<std::string>({"exact", "kvpress", "factory"});
  if (random.chance(25)) text += ", table=" + random.one_of<std::string>({"other", "lu_kv", "weights", "none"});
  if (random.chance(5)) text += ", least=3";
  if (random.chance(5)) text += ", cap=2";
  return text + ")";
}

std::string any_part(dice& random) {
  switch (random.below(16)) {
    case 0:
      return "sinks(" + count(random) + ")";
    case 1:
      return "recent(" + count(random) + ")";
    case 2:
      return random.one_of<std::string>({"span(3, 9)", "safe", "safe(2, 3)", "everything", "every_nth(3)"});
    case 3:
      return "put_first(" + random.one_of<std::string>({"tokens=3", "part=0.5", "3, then=random"}) + ")";
    case 4:
      return "reduce_lanes(" + random.one_of<std::string>({"token, sum", "layer, max", "token", "token, max"}) + ")";
    case 5:
      return random.one_of<std::string>({"frozen", "frozen(how=add)", "times_norm", "normalised(z)", "pooled",
                                         "normalised(rank, 4)", "noise(3)", "decayed(0.5)", "mix(0.3, knorm)",
                                         "critical(0.25)"});
    case 6:
      return random.one_of<std::string>({"over_budget(7)", "over_total(40)", "full_buffer(3)", "every(3)", "at_even"});
    case 7:
      return random.one_of<std::string>({"at_least(0.5)", "at_least(0.5, false, false)", "lowest_one", "below(0.5)"});
    case 8:
      return "when(" + random.one_of<std::string>({"step", "prefill", "turn", "chunk", "layer"}) + ")";
    default:
      return any_limit(random);
  }
}

std::string any_spec(dice& random, std::vector<kv::scorer_info> const& all) {
  std::string text = any_front(random, all);
  for (int i = random.below(4); i > 0; --i) text += " | " + any_part(random);
  return text;
}

/// True if an error "parse: column 7 = x, but it is y" names what stands in the column.
bool names_what_stands(std::string const& said, std::string const& spec) {
  std::string const begins = "parse: column ";
  if (!said.starts_with(begins)) return false;
  std::size_t column = 0;
  auto const end = std::from_chars(said.data() + begins.size(), said.data() + said.size(), column).ptr;
  std::string_view const rest(end, as_size(said.data() + said.size() - end));
  if (column < 1 || column > spec.size() + 1) return false;
  std::string_view const there = std::string_view(spec).substr(column - 1);
  if (rest.starts_with(": ")) {  // a field of the part that stands there
    std::string_view const part = there.substr(0, there.find_first_of("( |,)"));
    return rest.substr(2).starts_with(part) || part == "page" || part == "window" || part == "dense" || part == "cap";
  }
  std::string_view const found = rest.substr(3, rest.find(", but ") - 3);
  return found == "nothing" ? there.empty() || there[0] == ',' || there[0] == ')' : there.starts_with(found);
}

TEST_SUITE("by_name/systems") {
  TEST_CASE("20,000 random specs of systems with every part are read back as they print, or refused where they err") {
    dice random(15);
    kv::registry const known = with_mine();
    auto const all = known.list();
    std::vector<std::string> const what_is_said = words(
        "scope=layer scope=global by=ramp by=table by=importance by=seen beta=7.5 rule=kvpress rule=factory "
        "table=other table=weights least=3 cap=2 unlimited put_first(part=0.5 put_first(tokens=3 over_budget(7) "
        "over_total(40) full_buffer(3) at_even lowest_one below( less_by_layer every_nth at_least");
    int taken = 0;
    for (int i = 0; i < 20000; ++i) {
      std::string const spec = any_spec(random, all);
      CAPTURE(spec);
      std::string printed;
      std::string const refused = error_of([&] { printed = kv::to_string(known.parse(spec)); });
      CAPTURE(refused);
      if (printed.empty()) {
        REQUIRE(names_what_stands(refused, spec));
        continue;
      }
      CAPTURE(printed);
      ++taken;
      kv::any_policy const policy = known.parse(spec);
      REQUIRE(known.parse(printed) == policy);
      REQUIRE(kv::to_string(known.parse(printed)) == printed);
      bool const pools =
          policy.budget.by == kv::sharing::allotted && policy.budget.sharer.shared_by() == policy.scope();
      REQUIRE((policy.budget.by == kv::sharing::fixed || policy.scope() == kv::budget_scope::lane || pools));
      // What the user says is there: no system replaces it.
      for (std::string const& said : what_is_said) {
        if (spec.find(said) == std::string::npos) continue;
        CAPTURE(said);
        REQUIRE(printed.find(said) != std::string::npos);
      }
    }
    CHECK(taken > 4000);
  }

  TEST_CASE("every field of every system is in what it prints, or is refused") {
    kv::registry const known = with_mine();
    dice random(16);
    int fields = 0;
    for (kv::scorer_info const& each : known.list()) {
      std::string const end = each.has_no_budget || each.name == "full" ? "" : " | budget(40)";
      std::string const usual = kv::to_string(known.parse(each.name + end));
      for (kv::field_info const& field : each.fields) {
        ++fields;
        for (int i = 0; i < 20; ++i) {
          std::string const value = value_for(random, field);
          if (value == field.value || field.name == "scores") continue;
          std::string const spec = each.name + "(" + field.name + "=" + value + ")" + end;
          CAPTURE(spec);
          std::string printed;
          std::string const refused = error_of([&] { printed = kv::to_string(known.parse(spec)); });
          CAPTURE(refused);
          CHECK(printed != usual);
        }
      }
    }
    CHECK(fields > 50);
  }

  TEST_CASE("a system refuses by name what it does not do") {
    kv::registry const known = with_mine();
    auto const refused = [&](char const* spec) { return error_of([&] { (void)known.parse(spec); }); };
    says(refused, "parse: ")({
        {"pyramid_kv | budget(40, scope=global)",
         "column 31 = global, but pyramid_kv has shares that differ, so lanes share with nobody"},
        {"pyramid_kv | budget(40, by=table, table=other)", "column 28 = table, but pyramid_kv has shares of its own"},
        {"pyramid_kv | budget(40, by=ramp, beta=7.5)", "column 28 = ramp, but pyramid_kv has shares of its own"},
        {"pyramid_kv | unlimited",
         "column 14 = unlimited, but pyramid_kv shares out a budget of tokens, of a ratio or of bytes"},
        {"pyramid_kv | less_by_layer",
         "column 14 = less_by_layer, but pyramid_kv shares out a budget of tokens, of a ratio or of bytes"},
        {"pyramid_kv | at_least(0.5)",
         "column 14 = at_least, but pyramid_kv shares out a budget of tokens, of a ratio or of bytes"},
        {"lu_kv(scores=mine) | budget(40, by=table, table=other)",
         "column 36 = table, but lu_kv has shares of its own"},
        {"lu_kv(scores=mine, epsilon=0.5) | budget(40)",
         "column 1: lu_kv.epsilon = 0.5, but it is of expected_attention, and scores are given"},
        {"lu_kv(epsilon=-0.5) | budget(40)",
         "column 1: lu_kv: expected_attention.epsilon = -0.5, but it is added to every score, a number of 0 or more"},
        {"lu_kv(scores=mine, window=-1) | budget(40)", "column 1: lu_kv.window = -1, but a count cannot be negative"},
        {"nacl | put_first(3)", "column 8 = put_first, but its system has one of its own"},
        {"nacl | at_least(3)", "column 1 = nacl, but at_least has no places"},
        {"locret(local=5)", "column 8 = local, but locret has the fields name and stabilizers"},
        {"pyramid_kv(window=0)", "column 1: pyramid_kv: snapkv.window = 0, but at least one row observes"},
        {"side_quest | less_by_layer", "column 14 = less_by_layer, but at_least keeps however many entries there are"},
    });
    CHECK(error_of([&] { (void)kv::parse_cache_policy("admit: sir_llm | window(4)", known); }) ==
          "parse: column 8 = sir_llm, but it is a name for the parts of an eviction");
  }

  TEST_CASE("a system takes what it does") {
    kv::registry const known = with_mine();
    auto const printed = [&](char const* spec) { return kv::to_string(known.parse(spec)); };
    CHECK(printed("pyramid_kv | budget(40, by=ramp)") == printed("pyramid_kv | budget(40)"));
    CHECK(printed("lu_kv(scores=mine, table=other) | budget(40, by=table, table=other)") ==
          "external(name=mine) | safe(sinks=4, recent=1) | budget(40, by=table, table=other)");
    CHECK(printed("sir_llm | reduce_lanes(layer, sum) | budget(9)") ==
          "carried(name=surprise, decay=1) | put_first(tokens=1000, then=recency) | reduce_lanes(layer, sum) | "
          "sinks(4) | budget(9) | when(turn)");
    CHECK(printed("side_quest | unlimited") == printed("side_quest"));
  }

  TEST_CASE("a system of an admission is a name for its parts, which it prints") {
    auto const all = [](char const* spec) { return kv::parse_cache_policy(spec, with_mine().add(capped{})); };
    auto const is = [&](char const* spec, char const* parts) {
      CAPTURE(spec);
      std::string const printed = kv::to_string(all(spec));
      CHECK(printed == parts);
      CHECK(all(printed.c_str()) == all(spec));
    };
    is("admit: kvzap",
       "admit: carried(name=kvzap, decay=1) | at_least(least=-4, strict=false, unbounded=true) | window(128)");
    is("admit: kvzap(mine, sinks=4, threshold=-3) | sinks(9) | cap(5)",
       "admit: carried(name=mine, decay=1) | sinks(4) | sinks(9) | at_least(least=-3, strict=false, unbounded=true) | "
       "window(128) | cap(5)");
    is("admit: attention_gate(threshold=2) | span(2, 3); evict: knorm | budget(8)",
       "admit: write_gate | span(2, 3) | at_least(least=2, strict=true, unbounded=true) | window(1); evict: knorm | "
       "budget(8)");
    is("admit: ada_ea(covariance=false) | sinks(9)",
       "admit: expected_margin(covariance=false, thresholds=thresholds) | sinks(4) | sinks(9) | at_least(least=0, "
       "strict=true, unbounded=true) | window(256)");
    is("admit: ada_ea(8, 0, thresholds=q_filters)",
       "admit: expected_margin(covariance=true, thresholds=q_filters) | at_least(least=0, strict=true, unbounded=true) "
       "| window(8)");
    is("admit: capped(3)",
       "admit: write_gate | at_least(least=0.1, strict=false, unbounded=false) | window(4) | cap(3)");
    CHECK(all("admit: kvzap | sinks(4)") == all("admit: carried(kvzap) | at_least(-4) | window(128) | sinks(4)"));
    CHECK(all("admit: kvzap | window(128) | at_least(-4)") == all("admit: kvzap"));
    CHECK(all("admit: capped | cap(9)") == all("admit: capped"));
    CHECK(all("admit: kvzap(window=8)").admit == kv::any_admission(kv::kvzap{.window = 8}.admission()));
    CHECK(all("admit: attention_gate").admit == kv::any_admission(kv::attention_gate{}.admission()));
  }

  TEST_CASE("typed calls take the admission of a system") {
    float const numbers[] = {-5, -3, -4, -6, -2, -9, -4, -1};
    auto const kept = [&](kv::kvzap const& system) {
      float rows[16] = {};
      int count = 0, positions[8];
      kv::host_executor exec;
      kv::cache cache = kv::contiguous_cache(rows, rows + 8, {1, 1, 1, 1}, 8, &count, positions);
      auto const policy = system.admission();
      auto [state, plan] = state_and_plan(exec, policy, cache);
      kv::append(exec, cache, state, {.tokens = 8, .position = 0});
      kv::observe(
          exec, policy,
          kv::signals{cache.lanes,
                      kv::birth_score{{.base = reinterpret_cast<std::byte const*>(numbers), .entry = 4, .entries = 8}}},
          state);
      kv::decide(exec, policy, kv::signals{cache.lanes}, state, plan);
      auto const listed = plan.keep().listed(0);
      return std::vector<int>(listed.begin(), listed.end());
    };
    CHECK(kept({.window = 1}) == std::vector{1, 2, 4, 6, 7});
    CHECK(kept({.window = 1, .sinks = 1, .strict = true}) == std::vector{0, 1, 4, 7});
    CHECK(kept({.window = 1, .threshold = -8}) == std::vector{0, 1, 2, 3, 4, 6, 7});
  }

  TEST_CASE("a system of an admission refuses by name what it has itself") {
    kv::registry const known = kv::shipped().add(capped{});
    auto const refused = [&](char const* spec) { return error_of([&] { (void)kv::parse_cache_policy(spec, known); }); };
    says(refused, "parse: ")({
        {"admit: kvzap | window(4)", "column 16 = window, but kvzap has one of its own"},
        {"admit: kvzap | sinks(4) | at_least(0.5)", "column 27 = at_least, but kvzap has one of its own"},
        {"admit: attention_gate | at_least(0.5)", "column 25 = at_least, but attention_gate has one of its own"},
        {"admit: capped | cap(10)", "column 17 = cap, but capped has one of its own"},
        {"admit: kvzap(window=0)", "column 8: kvzap.window = 0, but the newest token is always seen"},
        {"admit: kvzap(sinks=-1)", "column 8: kvzap.sinks = -1, but a count cannot be negative"},
        {"admit: kvzap(windo=3)",
         "column 14 = windo, but kvzap has the fields name, window, sinks, threshold and strict; did you mean window?"},
        {"admit: attention_gate(window=x)", "column 30 = x, but attention_gate's window is an integer"},
        {"kvzap | budget(8)", "column 1 = kvzap, but it is a name for the parts of an admission"},
    });
    CHECK(refused("admit: kvza").ends_with(", kvzap, attention_gate, ada_ea and capped; did you mean kvzap?"));
    CHECK(refused("admit: ada_ea(window=0)") ==
          "parse: column 8 = ada_ea, but its table is thresholds, and a table is given to the registry by its name");
    CHECK(error_of([&] { kv::ada_ea{.window = 0}.check("here"); }) ==
          "here: ada_ea.window = 0, but the newest token is always seen");
    CHECK(error_of([&] { (void)kv::shipped().add(kv::kvzap{}); }) ==
          "registry: name = kvzap, but there is a system of that name");
    CHECK(error_of([&] { kv::kvzap{.threshold = std::numeric_limits<float>::infinity()}.check("here"); }) ==
          "here: kvzap.threshold = inf, but scores are compared with it");
  }

  TEST_CASE("systems of admissions and scorers of pages are listed apart from evictions") {
    kv::registry const known = kv::shipped();
    auto const listed = [](std::vector<kv::scorer_info> const& all) {
      std::string text;
      for (kv::scorer_info const& each : all) {
        text += each.name + ":";
        for (kv::field_info const& field : each.fields) text += " " + field.name + "=" + field.value;
        for (std::string const& tensor : each.tensors) text += " " + tensor;
        text += "\n";
      }
      return text;
    };
    CHECK(listed(known.list_admissions()) ==
          "kvzap: name=kvzap window=128 sinks=0 threshold=-4 strict=false birth.NAME\n"
          "attention_gate: threshold=0.5 window=1 sinks=0 strict=true gate\n"
          "ada_ea: window=256 sinks=4 covariance=true thresholds=thresholds keys query_model.mean\n");
    CHECK(listed(known.list_selections()) ==
          "quest: page=16 group=max bounds=f32 keys queries\npage_gates: name= page=64 page_gate.NAME\n");
    for (kv::scorer_info const& each : known.list()) CHECK(each.name != "kvzap");
    CHECK(known.spell_admission(kv::split_spec("kvzap(threshold=-4.50)").front()) ==
          "kvzap(name=kvzap, window=128, sinks=0, threshold=-4.5, strict=false)");
    CHECK(error_of([&] { (void)known.spell_admission(kv::split_spec("write_gate").front()); }) ==
          "parse: column 1 = write_gate, but it is no system of an admission");
  }

  TEST_CASE("a budget by value refuses what a spec refuses") {
    kv::any_budget limit = kv::ramp{.tokens = 40};
    limit.shared_by = kv::budget_scope::sequence;
    CHECK(error_of([&] { limit.check("make_state"); }) ==
          "make_state: budget.scope = global, but only lanes that share with nobody have shares that differ");
    kv::any_budget endless = kv::unlimited{};
    endless.by = kv::sharing::ramp;
    CHECK(error_of([&] { endless.check("make_state"); }) ==
          "make_state: budget.by = ramp, but a budget of tokens, of a ratio or of bytes is shared out");
  }
}

}  // namespace systems_test
