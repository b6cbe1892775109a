// SPDX-License-Identifier: Apache-2.0
// Policies in writing: every policy reads back as itself, and every error says where and what would have been accepted.

#include "laws/refusal.hpp"
#include "laws/subjects.hpp"
#include "support/specs.hpp"

namespace {

using namespace kvpolicy_test;

/// A number that printing could get wrong: tiny, long, whole, exact powers.
double any_part(dice& random) {
  switch (random.below(5)) {
    case 0:
      return random.below(101) / 100.0;
    case 1:
      return 1.0 / (1 + random.below(97));
    case 2:
      return 1e-17 * random.below(1000);
    case 3:
      return 0.1 + 1e-16 * random.below(9);
    default:
      return random.below(2);
  }
}

int any_count(dice& random) { return random.one_of<int>({0, 1, 2, 31, 1024, 1 << 20, 0x7FFFFFFF}); }

kv::any_budget any_limit(dice& random) {
  kv::any_budget limit;
  switch (random.below(4)) {
    case 0:
      limit = kv::drop_ratio{any_part(random),
                             random.one_of<kv::rounding>({kv::rounding::at_least_one, kv::rounding::exact,
                                                          kv::rounding::kvpress, kv::rounding::kvpress_0_5_4}),
                             random.chance(30)};
      break;
    case 1:
      limit = kv::in_bytes{std::int64_t{any_count(random)} * any_count(random)};
      break;
    case 2:
      if (random.chance(30)) return kv::unlimited{};
      [[fallthrough]];
    default:
      limit = kv::per_lane{any_count(random)};
      if (!random.chance(30)) break;
      return kv::whole_blocks{any_count(random), 1 + random.below(64)};
  }
  limit.shared_by =
      random.one_of<kv::budget_scope>({kv::budget_scope::lane, kv::budget_scope::layer, kv::budget_scope::sequence});
  if (limit.shared_by != kv::budget_scope::lane) limit.floor_part = any_part(random);
  bool const may_be_seen =
      limit.of == kv::any_budget::amount::ratio && limit.shared_by == kv::budget_scope::lane && !limit.held;
  if (may_be_seen && random.chance(30)) limit.by = kv::sharing::seen;
  return limit;
}

kv::any_protection any_parts(dice& random) {
  kv::any_protection all;
  for (int i = random.below(kv::any_protection::most + 1); i > 0; --i) {
    int const begin = random.below(100);
    switch (random.below(5)) {
      case 0:
        all.add(kv::sinks{any_count(random)});
        break;
      case 1:
        all.add(kv::recent{any_count(random)});
        break;
      case 2:
        all.add(kv::position_span{begin, begin + random.below(100)});
        break;
      case 3:
        all.add(kv::safe{any_count(random), any_count(random)});
        break;
      default:
        all.add(kv::everything{});
    }
  }
  return all;
}

template <class Scorer>
Scorer any_parameters(dice& random) {
  Scorer made{};
  auto const any_reduction = [&] {
    return random.one_of<kv::reduction>({kv::reduction::sum, kv::reduction::mean, kv::reduction::max});
  };
  if constexpr (std::same_as<Scorer, kv::streaming_llm>) made.sinks = any_count(random);
  if constexpr (std::same_as<Scorer, kv::snapkv>) {
    made.window = 1 + random.below(1000);
    int const width = 1 + 2 * random.below(50);
    made.pool = random.one_of<kv::pooling>({kv::no_pool{}, kv::max_pool{width}, kv::avg_pool{width}});
    made.rows = random.chance(25) ? kv::reduction::last : any_reduction();
    made.group = any_reduction();
  }
  if constexpr (std::same_as<Scorer, kv::h2o>) {
    made.heavy = random.chance(50) ? -1 : any_count(random);
    made.recent = random.chance(50) ? -1 : any_count(random);
    made.group = any_reduction();
  }
  if constexpr (std::same_as<Scorer, kv::tova>) made.force_last = random.chance(50);
  if constexpr (std::same_as<Scorer, kv::random_scores>) {
    made.seed =
        static_cast<std::uint64_t>(random.below(1 << 30)) * static_cast<std::uint64_t>(random.below(1 << 30)) * 16u;
  }
  return made;
}

template <class Scorer>
kv::any_policy any_policy_of(dice& random) {
  kv::reduce_lanes<Scorer> score{any_parameters<Scorer>(random), Scorer::decides, kv::reduction::sum};
  if (random.chance(50)) {
    score.decides = random.chance(50) ? kv::granularity::sequence : kv::granularity::layer;
    if (score.decides != Scorer::decides) {
      score.how = random.one_of<kv::reduction>({kv::reduction::sum, kv::reduction::mean, kv::reduction::max});
    }
  }
  kv::any_trigger trigger = kv::over_budget{random.chance(50) ? 0 : any_count(random)};
  if (random.chance(20)) trigger = kv::over_total{any_count(random)};
  if (random.chance(20)) trigger = kv::full_buffer{std::max(1, any_count(random))};
  kv::any_policy made(kv::any_scorer(score), any_parts(random), any_limit(random), kv::top{}, trigger);
  if (random.chance(10)) made.pick = kv::lowest_one{};
  if (random.chance(10)) {
    made.pick = kv::at_least{.least = static_cast<float>(any_part(random)), .unbounded = true};
    made.budget = kv::unlimited{};
  }
  if (random.chance(20)) {
    made.when = random.one_of<kv::phase>(
        {kv::phase::step, kv::phase::prefill, kv::phase::turn, kv::phase::chunk, kv::phase::layer});
  }
  return made;
}

kv::any_policy any_shipped(dice& random) {
  kv::any_policy made;
  int left = random.below(static_cast<int>(std::tuple_size_v<named_scorers>));
  auto const one = [&](auto const& scorer) {
    if (left-- == 0) made = any_policy_of<std::remove_cvref_t<decltype(scorer)>>(random);
  };
  std::apply([&](auto const&... each) { (one(each), ...); }, named_scorers{});
  return made;
}

/// A scorer that no header of the library knows.
struct middle {
  int of = 10;
  static constexpr auto name = "middle";
  static constexpr auto fields() { return std::tuple{kv::field{"of", &middle::of}}; }
  using needs = kv::needs<>;
  static constexpr auto decides = kv::granularity::lane;
  struct distance {
    int of;
    float operator()(float, kv::entry at) const { return -static_cast<float>(std::abs(at.position - of)); }
  };
  void score(auto& exec, auto const&, kv::score_view const& out) const { kv::ops::map(exec, out, distance{of}); }
  friend bool operator==(middle const&, middle const&) = default;
};

}  // namespace

TEST_SUITE("by_name/registry") {
  TEST_CASE("a policy reads back from its print as itself: 10,000 random policies") {
    dice random(20);
    int reduced = 0;
    for (int i = 0; i < 10000; ++i) {
      kv::any_policy const policy = any_shipped(random);
      std::string const text = kv::to_string(policy);
      CAPTURE(text);
      kv::any_policy const again = kv::parse(text);
      REQUIRE(again == policy);
      REQUIRE(kv::to_string(again) == text);
      reduced += text.find("reduce_lanes") != std::string::npos ? 1 : 0;
    }
    CHECK(reduced > 1000);
  }

  TEST_CASE("two policies are equal exactly if they print the same") {
    dice random(21);
    for (int i = 0; i < 2000; ++i) {
      kv::any_policy const a = any_shipped(random);
      kv::any_policy const b = any_shipped(random);
      REQUIRE((a == b) == (kv::to_string(a) == kv::to_string(b)));
    }
  }

  TEST_CASE("every ready policy erases, prints as it did, and reads back") {
    auto const check = [](auto const& typed) {
      kv::any_policy const erased = typed;
      CHECK(kv::to_string(erased) == kv::to_string(typed));
      CHECK(kv::parse(kv::to_string(typed)) == erased);
      CHECK(erased.decides() == typed.score.decides);
    };
    check(kv::policies::full());
    check(kv::policies::streaming_llm());
    check(kv::policies::snapkv());
    check(kv::policies::h2o());
    check(kv::policies::tova());
    check(kv::policies::knorm());
    check(kv::policies::random());
    check(kv::policies::snapkv_class());
    check(kv::policies::snapkv_installed());
    check(kv::policies::snapkv_longbench());
    check(kv::policies::snapkv_kvpress(0.3));
    check(kv::policies::h2o_summarisation());
    check(kv::policies::h2o_streaming());
    check(kv::policies::streaming_llm_class());
    check(kv::policies::tova_kvpress());
    check(kv::policies::ada_snapkv());
    check(kv::eviction{.score = kv::knorm{}, .protect = kv::safe{}, .budget = kv::per_sequence{64, 0.25}});
    check(kv::eviction{.score = kv::knorm{}, .budget = kv::in_bytes{1 << 26}, .trigger = kv::over_budget{3}});
    check(kv::eviction{.score = kv::reduce_lanes<kv::h2o>{{}, kv::granularity::sequence, kv::reduction::mean}});
    CHECK(kv::any_policy() == kv::any_policy(kv::policies::full()));
  }

  TEST_CASE("what a spec leaves out has the defaults, and parts come in any order") {
    CHECK(kv::to_string(kv::parse("snapkv")) == "snapkv(window=32, pool=max:7, rows=sum, group=mean) | budget(1024)");
    CHECK(kv::parse("  h2o ( heavy = 3 )|budget( 9 )|  sinks(2)") == kv::parse("h2o(heavy=3) | sinks(2) | budget(9)"));
    CHECK(kv::parse("full") == kv::any_policy(kv::policies::full()));
    CHECK(kv::parse("snapkv(8, none)") == kv::parse("snapkv(window=8, pool=none)"));
    CHECK(kv::parse("knorm()") == kv::parse("knorm"));
    CHECK(kv::parse("knorm | safe | over_budget(7)") == kv::parse("knorm|over_budget(7)|safe(sinks=4,recent=32)"));
  }

  TEST_CASE("an error names the column, what was found, and what would have been accepted") {
    CHECK(parse_error("") == "parse: column 1 = nothing, but a part begins with a name, as in snapkv | budget(1024)");
    std::string const unknown = parse_error("snpkv | budget(3)");
    CHECK(unknown.starts_with(
        "parse: column 1 = snpkv, but a policy begins with its scorer; there are full, streaming_llm"));
    CHECK(unknown.ends_with("; did you mean snapkv?"));
    says(parse_error, "parse: ")({
        {"snapkv(windw=3)",
         "column 8 = windw, but snapkv has the fields window, pool, rows and group; did you mean window?"},
        {"snapkv(zzzzzzzzzz=3)", "column 8 = zzzzzzzzzz, but snapkv has the fields window, pool, rows and group"},
        {"snapkv(window=3x)", "column 15 = 3x, but snapkv's window is an integer"},
        {"snapkv(window=99999999999)", "column 15 = 99999999999, but snapkv's window is an integer"},
        {"snapkv(pool=mox:7)", "column 13 = mox:7, but snapkv's pool is max:K, avg:K (K odd) or none"},
        {"snapkv(rows=avg)", "column 13 = avg, but snapkv's rows is sum, mean, max or last"},
        {"tova(force_last=1)", "column 17 = 1, but tova's force_last is true or false"},
        {"snapkv(window=0)", "column 1: snapkv.window = 0, but at least one row observes"},
        {"knorm | sink(3)",
         "column 9 = sink, but there are the parts frozen, reduce_lanes, put_first, blocks, times_norm, normalised, "
         "pooled, noise, decayed, mix, critical, sinks, recent, span, safe, everything, prompt, marks, budget, "
         "unlimited, over_budget, full_buffer, over_total, every, top, at_least, at_least_table, lowest, lowest_one "
         "and when; did you mean sinks?"},
        {"knorm | sinks(-1)", "column 9: sinks.tokens = -1, but a count cannot be negative"},
        {"knorm | span(5, 2)", "column 9: span.end = 2, but a span does not end before it begins (5)"},
        {"knorm(3)", "column 7 = 3, but knorm has no fields"},
        {"knorm | budget(3) | budget(4)", "column 21 = budget, but there is one before, at column 9"},
        {"knorm | reduce_lanes | reduce_lanes", "column 24 = reduce_lanes, but there is one before, at column 9"},
        {"knorm | budget(3, ratio=0.5)",
         "column 9 = budget, but it says how much once: budget(1024), budget(ratio=0.5) or budget(bytes=N)"},
        {"knorm | budget(ratio=1.5)", "column 9: budget.ratio = 1.5, but a part is dropped, 0 to 1"},
        {"knorm | budget(ratio=nan)", "column 22 = nan, but budget's ratio is a number"},
        {"knorm | budget(8, floor=0.5)",
         "column 9: budget.floor = 0.5, but a lane that shares with nobody has no floor: scope=layer or scope=global"},
        {"knorm | budget(8, rounding=kvpress)", "column 9 = budget, but only a ratio is rounded"},
        {"tova | reduce_lanes(lane)",
         "column 8: reduce_lanes.decides = lane, but the scorer decides by layer already, which is coarser"},
        {"knorm | reduce_lanes(token, last)", "column 9: reduce_lanes.how = last, but lanes have no order"},
        {"h2o(heavy=1, heavy=2)", "column 14 = heavy, but that field was given before"},
        {"h2o(heavy=1, 2)", "column 14 = 2, but after a named field all are named"},
        {"knorm(", "column 7 = nothing, but an argument is a value or field=value"},
        {"h2o(heavy=)", "column 11 = nothing, but h2o's heavy is an integer"},
    });
    CHECK(kv::to_string(kv::parse("external(name=surprise)")) == "external(name=surprise) | budget(1024)");
    CHECK(kv::parse("external(name=)") == kv::parse("external"));
    says(parse_error, "parse: ")({
        {"external(name=a123456789b123456789c123456789d1)",
         "column 15 = a123456789b123456789c123456789d1, but external's name is a name of at most 31 characters"},
        {"h2o(heavy=3", "column 12 = nothing, but arguments end with , or )"},
        {"knorm)", "column 6 = ), but a part ends with (, | or ;"},
        {"knorm |", "column 8 = nothing, but a part begins with a name, as in snapkv | budget(1024)"},
    });
    std::string many = "knorm";
    for (int i = 0; i < 9; ++i) many += " | sinks(1)";
    CHECK(parse_error(many) == "parse: column 97 = sinks, but at most eight protections are joined");
  }

  TEST_CASE("a user's scorer is known by name after one line") {
    kv::registry mine = kv::shipped();
    mine.add(middle{});
    kv::any_policy const policy = kv::parse("middle(of=7) | sinks(1) | budget(3)", mine);
    CHECK(kv::to_string(policy) == "middle(of=7) | sinks(1) | budget(3)");
    CHECK(policy ==
          kv::any_policy(kv::eviction{.score = middle{7}, .protect = kv::sinks{1}, .budget = kv::per_lane{3}}));
    CHECK(error_of([&] { mine.add(kv::knorm{}); }) == "registry: name = knorm, but there is a scorer of that name");
    CHECK(parse_error("middle").find("there are full") != std::string::npos);
  }

  TEST_CASE("what a spec cannot say is set as the defaults of a scorer that is there") {
    CHECK(to_string(kv::parse("trim_kv(buffer=3) | budget(4)")) ==
          "trim_kv(age_offset=0, buffer=3, window=0) | budget(4)");
    CHECK(parse_error("intent_kv(mode=learnable)") ==
          "parse: column 1: intent_kv.residual = none, but mode learnable needs the trained weights");
    auto mine = kv::shipped();
    mine.set(kv::trim_kv{.window = 7});
    CHECK(to_string(mine.parse("trim_kv | budget(4)")) == "trim_kv(age_offset=0, buffer=1, window=7) | budget(4)");
    CHECK(error_of([&] { mine.set(middle{}); }) == "registry: name = middle, but there is no scorer of that name");
  }

  TEST_CASE("a listing tells fields, types, defaults, signals and granularity") {
    auto const all = kv::shipped().list();
    REQUIRE(all.size() > std::tuple_size_v<named_scorers>);  // others have tests of their own
    CHECK(all[2].name == "snapkv");
    CHECK(all[2].needs == std::vector<std::string>{"keys", "recent_queries"});
    CHECK(all[2].fields[1].name == "pool");
    CHECK(all[2].fields[1].value == "max:7");
    CHECK(all[2].fields[1].type == "max:K, avg:K (K odd) or none");
    CHECK(all[4].name == "tova");
    CHECK(all[4].decides == kv::granularity::layer);
  }
}
