// SPDX-License-Identifier: Apache-2.0
// Cache policies by name: a spec with sections steps as the typed policy that prints it.

#include "support/stepping.hpp"

namespace {

using namespace kvpolicy_test;

template <class Policy>
constexpr bool is_gated = false;
template <class... Parts>
constexpr bool is_gated<kv::cache_policy<kv::any_admission, Parts...>> = true;

/// Calls visit(policy) with the policy of a spec that admits: others are not compiled here.
template <class Visit>
void with_gated(std::string const& spec, Visit const& visit) {
  bool found = false;
  kv::parse_cache_policy(spec).visit([&](auto const& policy) {
    if constexpr (is_gated<std::remove_cvref_t<decltype(policy)>>) {
      found = true;
      visit(policy);
    }
  });
  CHECK(found);
}

/// What a step leaves: the entries of every lane's pages, the pages read, and what was counted.
struct outcome {
  std::vector<std::vector<int>> entries, read;
  std::vector<std::int64_t> counted;
  bool operator==(outcome const&) const = default;
};

template <class Policy>
std::vector<outcome> outcomes_of(Policy const& policy) {
  stepping now(policy);
  std::vector<outcome> seen;
  for (int t = 0; t < 120; ++t) {
    now.step();
    outcome& latest = seen.emplace_back();
    for (int i = 0; i < 4; ++i) latest.entries.push_back(now.pages_of(i));
    latest.read = now.read;
    latest.counted = {now.told.evicted.logical_kept, now.told.promoted.promoted, now.engine.free_pages()};
  }
  return seen;
}

/// Runs the spec as a policy by name, which must print the spec.
std::vector<outcome> outcomes_by_name(std::string const& spec) {
  std::vector<outcome> seen;
  with_gated(spec, [&](auto const& policy) {
    CHECK(kv::to_string(policy) == spec);
    seen = outcomes_of(policy);
  });
  return seen;
}

/// Steps 120 tokens under a policy and under the spec that it prints, and compares what pages hold and what is read.
template <class Policy>
void steps_alike(Policy const& policy) {
  std::string const spec = kv::to_string(policy);
  CAPTURE(spec);
  std::vector<outcome> const typed = outcomes_of(policy);
  std::vector<outcome> const named = outcomes_by_name(spec);
  REQUIRE(named.size() == typed.size());
  for (std::size_t t = 0; t < typed.size(); ++t) REQUIRE(named[t] == typed[t]);
  std::size_t kept = 0;
  for (std::size_t t = 0; t < typed.size(); ++t) kept += typed[t].entries[t % 4].size();
  CHECK(kept > 120 * 4);
}

/// The positions that lanes hold after 60 steps of a policy without an admission, step by step.
template <class Policy>
std::vector<int> held_without_window(Policy const& policy) {
  std::vector<int> seen;
  step_without_window(policy, [&](int, kv::cache const& all, auto const&) {
    for (int i = 0; i < 4; ++i) {
      kv::lane const this_lane = all.lanes.at(i);
      int const* const position = all.lanes.position.row(this_lane);
      seen.insert(seen.end(), position, position + *all.lanes.count.row(this_lane));
    }
  });
  return seen;
}

/// A recorder of numbers of entries that does not say so.
struct undeclared : kv::record_attention_mass {
  static constexpr bool of_entries = false;
  [[nodiscard]] static std::array<kv::column, 1> columns(kv::shape const&, int) {
    return {kv::column{"undeclared", kv::column_extent::lane_entry, kv::on_move::permute, sizeof(float)}};
  }
  [[maybe_unused]] friend bool operator==(undeclared const&, undeclared const&) = default;
};
struct undeclared_h2o : kv::h2o {
  static constexpr auto name = "undeclared_h2o";
  static constexpr auto fields() { return kv::make_fields(); }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{undeclared{}}; }
  [[maybe_unused]] friend bool operator==(undeclared_h2o const&, undeclared_h2o const&) = default;
};

auto const admit = kv::policies::wg_kv({.window = 6, .threshold = 0.4f});
auto const choose = kv::selection{.score = kv::quest{.page = 4}, .budget = kv::per_lane{12}, .dense_layers = 1};
auto const drop = kv::policies::trim_kv({.budget = 20});

}  // namespace

TEST_SUITE("step/named") {
  TEST_CASE("a spec steps as the typed policy, with and without each section beside the admission") {
    steps_alike(kv::cache_policy{.admit = admit, .select = choose, .evict = drop});
    steps_alike(kv::cache_policy{.admit = admit, .evict = drop});
    steps_alike(kv::cache_policy{.admit = admit, .select = choose});
    steps_alike(kv::cache_policy{.admit = admit});
  }

  TEST_CASE("so does every eviction that may stand beside an admission") {
    kv::safe const forced{.sinks = 2, .recent = 3};
    kv::per_lane const budget{14};
    steps_alike(kv::cache_policy{.admit = admit, .select = choose, .evict = kv::eviction{kv::knorm{}, forced, budget}});
    steps_alike(kv::cache_policy{.admit = admit, .evict = kv::eviction{kv::streaming_llm{}, forced, budget}});
    steps_alike(kv::cache_policy{.admit = admit, .evict = kv::eviction{kv::random_scores{}, forced, budget}});
  }

  TEST_CASE("so does a spec without an admission, whose eviction may record what it likes") {
    auto const typed = kv::cache_policy{.select = choose, .evict = drop};
    int visited = 0;
    kv::parse_cache_policy(kv::to_string(typed)).visit([&](auto const& policy) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(policy.admit)>, kv::omitted>) {
        CHECK(held_without_window(policy) == held_without_window(typed));
        ++visited;
      }
    });
    CHECK(visited == 1);
    kv::parse_cache_policy("select: quest(page=4) | budget(12); evict: trim_kv | budget(0)")
        .visit([&](auto const& policy) {
          if constexpr (std::is_same_v<std::remove_cvref_t<decltype(policy.admit)>, kv::omitted>) {
            CHECK(held_without_window(policy).empty());
          }
        });
  }

  TEST_CASE("a step of a policy by name allocates nothing") {
    with_gated(kv::to_string(kv::cache_policy{.admit = admit, .select = choose, .evict = drop}),
               [](auto const& policy) {
                 stepping now(policy);
                 for (int t = 0; t < 40; ++t) now.step();
                 now.lists_read = false;
                 CHECK(allocations_in([&] { now.step(); }) == 0);
               });
  }

  TEST_CASE("what an eviction beside an admission cannot record or read is refused, and nothing has changed") {
    with_gated("admit: write_gate | window(6); evict: h2o | budget(20)", [](auto const& policy) {
      stepping now(policy);
      CHECK(
          error_of([&] { now.step(); }) ==
          "observe: evict = h2o(heavy=-1, recent=-1, group=sum) | budget(20), but it records what forwards show: give "
          "the signals of the pages, too");
    });
    kv::cache_policy const own{.admit = admit,
                               .select = kv::omitted{},
                               .evict = kv::eviction{.score = undeclared_h2o{}, .budget = kv::per_lane{20}}};
    CHECK(error_of([&] { stepping now(own); }) ==
          "make_state: evict = undeclared_h2o | budget(20), but its column undeclared has a number of each entry, and "
          "its recorder does not say so (of_entries): beside an admission the window records them, too");
    with_gated(
        "admit: write_gate | at_least(-1, unbounded=true) | window(6); evict: external(name=mine) | budget(3)",
        [](auto const& policy) {
          stepping now(policy);
          auto const seen = dual_engine::seen(now.both, {});
          CHECK(error_of([&] { now.step(); }) == "step: signals = keys, values, but external needs signal external");
          CHECK(dual_engine::seen(now.both, {}) == seen);
        });
    with_gated("admit: write_gate | window(6); evict: knorm | reduce_lanes(layer, sum) | budget(3)",
               [](auto const& policy) {
                 stepping now(policy);
                 CHECK(error_of([&] { now.step(); }) ==
                       "step: evict.score.decides = layer, but pages are ragged: every lane decides for itself");
               });
  }

  TEST_CASE("erased recorders are equal if they hold equal ones, and tell those of a window") {
    using recorders = kv::any_recorders<kv::host_executor>;
    kv::shape const model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4};
    recorders const both(std::tuple{kv::record_retention{}, kv::record_page_bounds{4}}, "mine");
    CHECK(both == recorders(std::tuple{kv::record_retention{}, kv::record_page_bounds{4}}, "yours"));
    CHECK(both != recorders(std::tuple{kv::record_retention{}, kv::record_page_bounds{8}}, "mine"));
    CHECK(both != recorders(std::tuple{kv::record_retention{}}, "mine"));
    CHECK(both != both.in_window());
    CHECK_FALSE(both.all_known_at_append());
    CHECK(both.keeps_rows());
    CHECK(both.undeclared(model).empty());
    CHECK(recorders(std::tuple{undeclared{}}, "mine").undeclared(model) == "undeclared");
    CHECK(recorders().all_known_at_append());
    CHECK(recorders().columns(model, 8).size() == 0);
    CHECK(both.columns(model, 8).size() > both.in_window().columns(model, 8).size());
    CHECK(*both.in_window().columns(model, 8).begin() == kv::record_retention::columns(model, 8)[0]);
  }
}
