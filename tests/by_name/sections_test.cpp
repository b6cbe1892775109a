// SPDX-License-Identifier: Apache-2.0
// Sections of a spec: admissions, selections and all three together are read as they were printed.

#include "support/specs.hpp"

namespace {

using namespace kvpolicy_test;

float const of_heads[] = {0, 1};
kv::by_lane<float const> const heads{of_heads, 0, 0, 1};

kv::registry with_heads() {
  kv::registry known = kv::shipped();
  known.table("heads", heads);
  return known;
}

int any_count(dice& random) { return random.one_of<int>({0, 1, 2, 31, 1024, 1 << 20, 0x7FFFFFFF}); }

float any_float(dice& random) {
  return random.one_of<float>(
      {0.0f, 1.0f, 0.1f, 1e-30f, 0.33333334f, -0.0f, static_cast<float>(random.below(997)) / 997});
}

kv::any_admission any_admission(dice& random) {
  kv::any_admission made;
  int const which = random.below(5);
  if (which == 1) {
    made.score = kv::any_scorer(kv::carried{.of = {"mine"}, .decay = 1.0f / static_cast<float>(1 + random.below(97))});
  }
  if (which == 2) made.score = kv::any_scorer(kv::head_table{});
  if (which == 3) made.score = kv::any_scorer(kv::head_table{heads, {"heads"}});
  if (which == 4) made.score = kv::any_scorer(kv::knorm{});
  for (int i = random.below(4); i > 0; --i) {
    kv::any_protection const more = random.chance(50)
                                        ? kv::any_protection(kv::sinks{any_count(random)})
                                        : kv::any_protection(kv::position_span{i, i + any_count(random) / 2});
    made.protect.add(more);
  }
  made.window = std::max(1, any_count(random));
  kv::at_least pick{.least = any_float(random), .strict = random.chance(50), .unbounded = random.chance(50)};
  if (pick.unbounded) pick.least = random.one_of<float>({-1e20f, 3.5f, 16777216.0f, pick.least});
  made.pick = pick;
  made.cap = random.chance(50) ? -1 : any_count(random);
  return made;
}

kv::any_selection any_selection(dice& random) {
  kv::any_selection made;
  int const page = std::max(1, any_count(random));
  if (random.chance(50)) {
    made.score =
        kv::any_page_scorer(kv::page_gates{.of = random.chance(50) ? kv::label{} : kv::label{"mine"}, .page = page});
  } else {
    made.score = kv::any_page_scorer(
        kv::quest{.page = page,
                  .group = random.one_of<kv::reduction>({kv::reduction::sum, kv::reduction::mean, kv::reduction::max}),
                  .bounds = random.one_of<kv::codec>({kv::codec::f32, kv::codec::f16, kv::codec::bf16})});
  }
  made.dense_layers = any_count(random);
  if (random.chance(40)) made.inherit = std::max(1, any_count(random));
  if (random.chance(40)) made.protect.add(kv::safe{any_count(random), any_count(random)});
  if (random.chance(25)) {
    made.pick = kv::at_least{.least = any_float(random), .unbounded = true};
    made.budget = kv::unlimited{};
    return made;
  }
  switch (random.below(4)) {
    case 0:
      made.budget = kv::unlimited{};
      break;
    case 1:
      made.budget = kv::drop_ratio{0.1 + 1e-16 * random.below(9)};
      break;
    case 2:
      made.budget = kv::in_bytes{std::int64_t{any_count(random)} * 5};
      break;
    default:
      made.budget = kv::per_lane{any_count(random)};
  }
  return made;
}

kv::any_policy any_eviction(dice& random) {
  kv::any_budget const limit = kv::per_lane{any_count(random)};
  kv::any_protection const kept = kv::sinks{any_count(random)};
  kv::any_policy made;
  if (random.chance(50)) {
    made = kv::eviction<kv::knorm, kv::any_protection, kv::any_budget>{{}, kept, limit};
  } else {
    made = kv::eviction<kv::h2o, kv::any_protection, kv::any_budget>{{.heavy = any_count(random)}, kept, limit};
  }
  if (random.chance(30)) made.when = random.one_of<kv::phase>({kv::phase::prefill, kv::phase::turn, kv::phase::layer});
  return made;
}

std::string error(std::string const& text) {
  return error_of([&] { (void)kv::parse_cache_policy(text); });
}

}  // namespace

TEST_SUITE("by_name/sections") {
  TEST_CASE("10,000 random admissions, selections and triples are read as they were printed") {
    kv::registry const known = with_heads();
    dice random(20261123);
    for (int round = 0; round < 10000; ++round) {
      kv::any_cache_policy made;
      for (int const chosen : {round % 3, random.below(6), random.below(6)}) {
        if (chosen == 0) made.admit = any_admission(random);
        if (chosen == 1) made.select = any_selection(random);
        if (chosen == 2) made.evict = any_eviction(random);
      }
      std::string const text = kv::to_string(made);
      INFO(text);
      kv::any_cache_policy const read = kv::parse_cache_policy(text, known);
      REQUIRE(read == made);
      REQUIRE(kv::to_string(read) == text);
    }
  }

  TEST_CASE("they print as typed policies do") {
    kv::cache_policy const typed{.admit = kv::policies::wg_kv({.window = 64, .threshold = 0.25f}),
                                 .select = kv::policies::quest({.budget = 512}),
                                 .evict = kv::policies::knorm({.budget = 4096})};
    std::string const text = kv::to_string(typed);
    kv::any_cache_policy const read = kv::parse_cache_policy(text);
    CHECK(kv::to_string(read) == text);
    CHECK(read.select == kv::any_selection(typed.select));
    CHECK(kv::to_string(kv::selection{.score = kv::quest{}, .inherit = 4}) ==
          "quest(page=16, group=max, bounds=f32) | budget(1024) | dense(2) | inherit(4)");
    CHECK(kv::parse_cache_policy("select: quest | page(16) | dense(2) | inherit(4) | budget(1024)").select ==
          kv::any_selection(kv::selection{.score = kv::quest{}, .inherit = 4}));
    CHECK(kv::parse_cache_policy("select: page_gates(name=mine, page=32) | budget(64) | dense(0)").select ==
          kv::any_selection(
              kv::selection{kv::page_gates{.of = {"mine"}, .page = 32}, kv::any_budget(kv::per_lane{64}), 0}));
    REQUIRE(read.admit.has_value());
    CHECK(read.admit->window == 64);
    CHECK(kv::any_admission(typed.admit) == read.admit);
    CHECK(kv::parse_cache_policy("knorm | budget(3)").evict == kv::parse("knorm | budget(3)"));
    CHECK(kv::parse_cache_policy("evict: knorm ;admit:write_gate").admit == kv::any_admission{});
  }

  TEST_CASE("the size of pages may be a part of its own") {
    kv::any_cache_policy const read = kv::parse_cache_policy("select: page_gates(mine) | page(32)");
    CHECK(read.select->score.page == 32);
    CHECK(read == kv::parse_cache_policy("select: page_gates(mine, page=32)"));
    CHECK(error("select: quest(page=4) | page(8)") == "parse: column 25 = page, but there is one before, at column 15");
    CHECK(error("select: quest | page(0)") == "parse: column 9: quest.page = 0, but a page holds at least one entry");
  }

  TEST_CASE("any scorer of entries that scores each by itself admits") {
    CHECK(kv::to_string(kv::parse_cache_policy("admit: knorm | at_least(-4)")) ==
          "admit: knorm | at_least(least=-4, strict=false, unbounded=true) | window(256)");
    CHECK(error("admit: intent_kv | window(8)") ==
          "parse: column 8 = intent_kv, but it ranks entries, and an admission asks about each alone");
  }

  TEST_CASE("a named table is the one that the registry was given") {
    kv::any_admission const read = *kv::parse_cache_policy("admit: head_table(table=heads)", with_heads()).admit;
    CHECK(read.score == kv::any_scorer(kv::head_table{heads, {"heads"}}));
    CHECK(!(read.score == kv::any_scorer(kv::head_table{{}, {"heads"}})));
    CHECK(error("admit: head_table(table=heads)") ==
          "parse: column 25 = heads, but a table is given to the registry by its name");
  }

  TEST_CASE("what is wrong is named with its column") {
    CHECK(
        error("admit: write_gat")
            .starts_with("parse: column 8 = write_gat, but an admission begins with its scorer; there are write_gate, "
                         "head_table, full, "));
    says(error, "parse: ")({
        {"admit: write_gate | windo(3)",
         "column 21 = windo, but an admission has the parts at_least, at_least_table, window, cap, sinks, recent, "
         "span, safe, everything, prompt and marks; did you mean window?"},
        {"adit: write_gate",
         "column 1 = adit, but there are the sections admit, select and evict; did you mean admit?"},
        {"knorm; evict: knorm", "column 8 = evict, but there is one before, at column 1"},
        {"evict: knorm; tova", "column 15 = tova, but there is one before, at column 1"},
        {"select: quest(8) | page(16)", "column 20 = page, but that field was given before"},
        {"select: quest | budget(3) | budget(4)", "column 29 = budget, but there is one before, at column 17"},
        {"admit: write_gate | window(3) | window(3)", "column 33 = window, but there is one before, at column 21"},
        {"select: quest | budget(3, scope=layer)", "column 17: budget.scope = layer, but every lane reads for itself"},
        {"select: quest | budget(3, by=ramp)", "column 30 = ramp, but every lane of a selection has the same budget"},
        {"select: knorm", "column 9 = knorm, but a selection begins with its scorer; there are quest and page_gates"},
        {"select: page_gates(page=0)", "column 9: page_gates.page = 0, but a page holds at least one entry"},
        {"select: quest | window(4)",
         "column 17 = window, but a selection has the parts page, budget, unlimited, dense, inherit, top, at_least, "
         "at_least_table, sinks, recent, span, safe, everything, prompt and marks"},
        {"select: quest | inherits(4)",
         "column 17 = inherits, but a selection has the parts page, budget, unlimited, dense, inherit, top, at_least, "
         "at_least_table, sinks, recent, span, safe, everything, prompt and marks; did you mean inherit?"},
        {"select: quest | inherit(4) | inherit(layers=2)",
         "column 30 = inherit, but there is one before, at column 17"},
        {"select: quest | inherit(0)",
         "column 17: inherit = 0, but the layer that chooses is one of those that read its pages"},
        {"select: quest | inherit(layer=2)",
         "column 25 = layer, but inherit has the fields layers; did you mean layers?"},
    });
    CHECK(error("evict: knorm | inherit(2)").starts_with("parse: column 16 = inherit, but there are the parts "));
    says(error, "parse: ")({
        {"select: quest | at_least(2) | budget(4)",
         "column 31 = budget, but at_least reads however many pages there are"},
        {"admit: head_table | window(0)", "column 21: admission.window = 0, but the newest token is always seen"},
        {"evict: knorm;", "column 14 = nothing, but a part begins with a name, as in snapkv | budget(1024)"},
    });
  }
}
