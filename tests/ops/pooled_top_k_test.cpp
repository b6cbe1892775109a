// SPDX-License-Identifier: Apache-2.0
// Budgets that lanes share: top_k against one flat list of all candidates, and how ratios and bytes become counts.

#include "layout/slot_cache.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;
using ordinals = std::vector<int>;

/// Forced entries by flags, a row a lane.
struct flagged {
  std::vector<reference::flags> const* rows = nullptr;
  kv::lanes lanes{};
  bool operator()(kv::entry at) const { return (*rows)[as_size(lanes.index(at.lane))][as_size(at.ordinal)]; }
  [[maybe_unused]] friend bool operator==(flagged const& a, flagged const& b) { return a.rows == b.rows; }
};

template <class Budget>
auto rule_of(Budget const& limit, flagged const& forced, int slack) {
  return kv::detail::decision_rule{kv::nothing{}, forced, limit, kv::over_budget{slack}};
}

void pools_as_the_reference() {
  int const sequences = *rc::gen::inRange(1, 4);
  int const layers = *rc::gen::inRange(1, 4);
  int const heads = *rc::gen::inRange(1, 5);
  int const bound = *rc::gen::element(33, 1, 31, 32, 40, 130);
  bool const global = any_bool();
  dice random(any_seed());
  trouble const what = any_trouble();
  std::vector<int> counts(as_size(sequences * layers * heads));
  for (int& each : counts) each = random.chance(40) ? bound : random.below(bound + 1);
  owned_lanes lanes(sequences, layers, heads, bound, counts);
  if (random.chance(20)) lanes.set_drafts(0, *std::min_element(counts.begin(), counts.end()) > 0 ? 1 : 0);
  owned_scores scores(lanes.view());
  for (float& each : scores.all()) each = troubled_score(random, what);
  int const percent = random.one_of<int>({0, 10, 60, 100});
  std::vector<reference::flags> forced(counts.size());
  for (auto& row : forced) {
    bool const some = random.chance(70);
    for (int e = 0; e < bound; ++e) row.push_back(some && random.chance(percent));
  }
  int const tokens = random.one_of<int>({0, 1, random.below(bound + 1), bound, 7});
  double const floor = random.one_of<double>({0, 0.2, 0.5, 1, 0.29});
  int const least = random.one_of<int>({0, 0, 1, 3, tokens + 1});
  int const slack = random.chance(30) ? random.below(20) : 0;
  flagged const flags{&forced, lanes.view()};

  owned_keep keep(scores.view());
  kv::host_executor exec(*rc::gen::element(1, 3));
  exec.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, bound));
  auto const before = as_row(scores.all());
  if (global)
    kv::ops::top_k(exec, scores.view(), rule_of(kv::per_sequence{tokens, floor, least}, flags, slack), keep.view());
  if (!global)
    kv::ops::top_k(exec, scores.view(), rule_of(kv::per_layer{tokens, floor, least}, flags, slack), keep.view());
  auto const after = as_row(scores.all());
  RC_ASSERT(std::equal(before.begin(), before.end(), after.begin(),
                       [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }));

  int const pool_lanes = global ? layers * heads : heads;
  kv::report expected;
  for (int first = 0; first < static_cast<int>(counts.size()); first += pool_lanes) {
    std::vector<reference::row> rows;
    std::vector<reference::flags> some;
    std::size_t entries = 0;
    for (int lane = first; lane < first + pool_lanes; ++lane) {
      int const count = lanes.view().committed(lanes.view().at(lane));
      rows.push_back(as_row(scores.row(lane, count)));
      some.push_back(forced[as_size(lane)]);
      some.back().resize(as_size(count));
      entries += as_size(count);
    }
    auto const pooled = reference::select_pooled(rows, some, pool_lanes * tokens,
                                                 std::max(least, reference::lane_floor(floor, tokens)), slack);
    std::size_t total = 0;
    int forced_total = 0;
    for (int lane = 0; lane < pool_lanes; ++lane) {
      RC_LOG() << "lane " << first + lane << " of " << counts.size() << ", pool of " << pool_lanes << '\n';
      RC_ASSERT(keep.kept(first + lane) == pooled.kept[as_size(lane)]);
      total += keep.kept(first + lane).size();
      forced_total += reference::count_of(some[as_size(lane)]);
    }
    bool const triggered = reference::fires(entries, pool_lanes * tokens, slack);
    std::size_t const budget = as_size(std::max(pool_lanes * tokens, forced_total));
    RC_ASSERT(total == (triggered ? std::min(entries, budget) : entries));
    expected.nan_scores += pooled.nan_candidates;
    RC_ASSERT(!triggered || keep.report().triggered > 0);
    RC_ASSERT(pooled.forced_over_budget == 0 || keep.report().forced_over_budget > 0);
    expected.over_budget += total > as_size(pool_lanes * tokens) ? 1 : 0;
  }
  RC_ASSERT(keep.report().nan_scores == expected.nan_scores);
  RC_ASSERT(keep.report().over_budget == expected.over_budget);
}

/// Pools that are large enough for a sample, with forced entries at both ends, against the reference.
void large_pools_as_the_reference() {
  int const heads = *rc::gen::element(4, 2, 3, 5);
  int const bound = *rc::gen::element(1500, 1024, 1031, 4097);
  bool const global = any_bool();
  dice random(any_seed());
  trouble const what = any_trouble();
  std::vector<int> counts(as_size(2 * heads));
  for (int& each : counts) each = random.chance(60) ? bound : random.below(bound + 1);
  owned_lanes lanes(1, 2, heads, bound, counts);
  owned_scores scores(lanes.view());
  bool const smooth = random.chance(50);  // most pools of numbers alone, of which lanes may have more or less
  for (int lane = 0; lane < 2 * heads; ++lane) {
    float const above = random.chance(30) ? 0.5f : 0.0f;
    for (float& each : scores.row(lane, bound))
      each = smooth ? above + static_cast<float>(random.below(1 << 20)) : troubled_score(random, what);
  }
  kv::safe const ends{random.below(9), random.below(40)};
  int const tokens = random.one_of<int>({bound / 2, bound / 4, bound / 100, 1 + random.below(bound), 60});
  double const floor = random.one_of<double>({0, 0.2, 0.9});
  std::vector<reference::row> rows(counts.size());
  std::vector<reference::flags> forced(counts.size());
  for (std::size_t lane = 0; lane < counts.size(); ++lane) {
    rows[lane] = as_row(scores.row(static_cast<int>(lane), counts[lane]));
    int const* const position = lanes.view().position.row(lanes.view().at(static_cast<int>(lane)));
    for (int e = 0; e < counts[lane]; ++e)
      forced[lane].push_back(position[e] < ends.sinks || counts[lane] - e <= ends.recent);
  }
  kv::host_executor exec(*rc::gen::element(1, 2, 5),
                         *rc::gen::element(kv::best_isa(), kv::isa::avx2, kv::isa::portable));
  exec.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, bound));
  owned_keep keep(scores.view());
  auto const decide = [&](auto const& budget) {
    kv::ops::top_k(exec, scores.view(), kv::detail::decision_rule{kv::nothing{}, ends, budget, kv::over_budget{}},
                   keep.view());
  };
  global ? decide(kv::per_sequence{tokens, floor}) : decide(kv::per_layer{tokens, floor});
  std::int64_t nan = 0;
  int const many = global ? 2 * heads : heads;
  for (int first = 0; first < 2 * heads; first += many) {
    auto const expected = reference::select_pooled({rows.begin() + first, rows.begin() + first + many},
                                                   {forced.begin() + first, forced.begin() + first + many},
                                                   many * tokens, reference::lane_floor(floor, tokens), 0);
    for (int lane = 0; lane < many; ++lane) RC_ASSERT(keep.kept(first + lane) == expected.kept[as_size(lane)]);
    nan += expected.nan_candidates;
  }
  RC_ASSERT(keep.report().nan_scores == nan);
}

/// Decides by scores that are there: the whole way through make_state, make_plan and decide.
struct given_scores {
  std::vector<std::vector<float>> const* rows = nullptr;  // a row a lane
  kv::lanes lanes{};
  using needs = kv::needs<>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  void score(auto& exec, auto const&, kv::score_view const& out) const {
    auto const read = [this](float, kv::entry at) {
      return (*rows)[as_size(lanes.index(at.lane))][as_size(at.ordinal)];
    };
    kv::ops::map(exec, out, read);
  }
  [[maybe_unused]] friend bool operator==(given_scores const& a, given_scores const& b) { return a.rows == b.rows; }
};

template <class Budget>
std::vector<ordinals> kept_by(std::vector<std::vector<float>> const& rows, int layers, Budget const& limit,
                              kv::codec element = kv::codec::f32) {
  int const heads = static_cast<int>(rows.size()) / layers;
  int bound = 1;
  for (auto const& row : rows) bound = std::max(bound, static_cast<int>(row.size()));
  slot_cache cache({.model = {.layers = layers, .query_heads = heads, .kv_heads = heads, .head_dim = 4},
                    .bound = bound,
                    .by_lane = true,
                    .element = element});
  for (std::size_t lane = 0; lane < rows.size(); ++lane) {
    cache.count[lane] = static_cast<int>(rows[lane].size());
    for (int e = 0; e < bound; ++e) cache.position[lane * as_size(bound) + as_size(e)] = e;
  }
  kv::eviction<given_scores, kv::nothing, Budget> const policy{.score = {&rows, cache.lanes()}, .budget = limit};
  kv::host_executor exec;
  auto [state, plan] = decided(exec, kv::signals{cache.lanes()}, policy, cache.view());
  std::vector<ordinals> kept;
  for (int lane = 0; lane < static_cast<int>(rows.size()); ++lane) kept.push_back(listed(plan.keep(), lane));
  return kept;
}

}  // namespace

TEST_SUITE("ops/top_k") {
  TEST_CASE("lanes that share a budget keep what one flat list of their candidates says, and exactly so many") {
    holds("pooled top_k == reference", 600, pools_as_the_reference);
  }

  TEST_CASE("large pools, of which a sample is taken, keep what one flat list of their candidates says") {
    holds("large pooled top_k == reference", rounds(300), large_pools_as_the_reference);
  }

  TEST_CASE("ties in a pool go to the lower layer, then head, then ordinal") {
    std::vector<std::vector<float>> const rows(4, std::vector<float>(3, 1.0f));
    CHECK(kept_by(rows, 2, kv::per_sequence{1, 0}) == std::vector<ordinals>{{0, 1, 2}, {0}, {}, {}});
    CHECK(kept_by(rows, 2, kv::per_layer{1, 0}) == std::vector<ordinals>{{0, 1}, {}, {0, 1}, {}});
    CHECK(kept_by(rows, 2, kv::per_layer{1, 1}) == std::vector<ordinals>{{0}, {0}, {0}, {0}});
  }

  TEST_CASE("lanes that decide together have no pool, and a pool of all layers is decided for all of them") {
    slot_cache cache({.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = 8});
    kv::host_executor exec;
    kv::cache view = cache.view();
    auto const refused = [&](auto const& policy, kv::lanes const& batch) {
      auto [state, plan] = state_and_plan(exec, policy, view);
      kv::append(exec, view, state, {.tokens = 8, .position = 0});
      std::string error;
      try {
        kv::decide(exec, policy, kv::signals{batch}, state, plan);
      } catch (kv::invalid_argument const& text) {
        error = text.what();
      }
      kv::truncate(exec, view, state, 0, 0);
      CHECK((error.empty() || plan.keep().indices == nullptr));
      return !error.empty();
    };
    using together = kv::eviction<kv::reduce_lanes<kv::random_scores>, kv::nothing, kv::per_sequence>;
    using layers = kv::eviction<kv::reduce_lanes<kv::random_scores>, kv::nothing, kv::per_layer>;
    using apart = kv::eviction<kv::random_scores, kv::nothing, kv::per_sequence>;
    using by_layer = kv::eviction<kv::random_scores, kv::nothing, kv::per_layer>;
    CHECK(refused(together{}, view.lanes));
    CHECK(refused(layers{.score = {.decides = kv::granularity::layer}}, view.lanes));
    CHECK(refused(apart{}, view.lanes.layers_only(1, 2)));
    CHECK(!refused(apart{}, view.lanes));
    CHECK(!refused(by_layer{}, view.lanes.layers_only(1, 2)));
  }
}

TEST_SUITE("parts/budget") {
  TEST_CASE("AdaKV's worked example: a floor of int(.2 * 2) = 0, so one head keeps three and the other one") {
    std::vector<std::vector<float>> const rows{{.5f, .3f, .1f, .05f, .05f}, {.9f, .02f, .03f, .03f, .02f}};
    CHECK(kept_by(rows, 1, kv::per_layer{2, 0.2}) == std::vector<ordinals>{{0, 1, 2}, {0}});
    CHECK(kept_by(rows, 1, kv::per_layer{2, 0.5}) == std::vector<ordinals>{{0, 1, 2}, {0}});
    CHECK(kept_by(rows, 1, kv::per_layer{2, 1.0}) == std::vector<ordinals>{{0, 1}, {0, 2}});
    CHECK(kept_by(rows, 2, kv::per_layer{2, 0.2}) == std::vector<ordinals>{{0, 1}, {0, 2}});  // layers share nothing
    CHECK(kept_by(rows, 2, kv::per_sequence{2}) == std::vector<ordinals>{{0, 1, 2}, {0}});
  }

  TEST_CASE("a ratio keeps the floor of the real number, or as many as kvpress keeps") {
    struct wanted {
      int count;
      double drop;
      int exact, kvpress, before_0_5_5;
    };
    for (wanted const& one : {wanted{100, .9, 10, 9, 9}, wanted{10, .9, 1, 1, 0}, wanted{1000, .9, 100, 99, 99},
                              wanted{1000, .07, 930, 929, 929}, wanted{100, .34, 66, 65, 65}, wanted{5, .5, 2, 2, 2},
                              wanted{7, 0, 7, 7, 7}, wanted{7, 1, 0, 0, 0}, wanted{3, .9, 0, 1, 0}}) {
      CHECK(kv::drop_ratio{one.drop, kv::rounding::exact}({}, one.count) == one.exact);
      CHECK(kv::drop_ratio{one.drop, kv::rounding::kvpress}({}, one.count) == one.kvpress);
      CHECK(kv::drop_ratio{one.drop, kv::rounding::kvpress_0_5_4}({}, one.count) == one.before_0_5_5);
    }
    std::vector<std::vector<float>> const row{std::vector<float>(100, 1.0f)};
    CHECK(kept_by(row, 1, kv::drop_ratio{.9})[0].size() == 10);
    CHECK(kept_by(row, 1, kv::drop_ratio{.9, kv::rounding::kvpress})[0].size() == 9);
    CHECK(kept_by(row, 1, kv::drop_ratio{.999, kv::rounding::kvpress})[0] == ordinals{0});
    CHECK(kept_by(row, 1, kv::drop_ratio{.999, kv::rounding::kvpress_0_5_4})[0].empty());
  }

  TEST_CASE("hundredths of up to 2000 entries are exact, and kvpress before 0.5.5 is one short of it 1304 times") {
    int short_by_one = 0;
    for (int percent = 1; percent < 100; ++percent) {
      for (int count = 1; count <= 2000; ++count) {
        int const real = count * (100 - percent) / 100;
        double const drop = percent / 100.0;
        REQUIRE((kv::drop_ratio{drop, kv::rounding::exact}({}, count)) == real);
        REQUIRE(kv::drop_ratio{drop}({}, count) == std::max(1, real));
        int const theirs = kv::drop_ratio{drop, kv::rounding::kvpress_0_5_4}({}, count);
        REQUIRE((kv::drop_ratio{drop, kv::rounding::kvpress}({}, count)) == std::max(1, theirs));
        short_by_one += theirs != real ? 1 : 0;
        REQUIRE((theirs == real || theirs == real - 1));
      }
    }
    CHECK(short_by_one == 1304);
  }

  TEST_CASE("bytes are shared out among all lanes of a sequence, by what an entry of K and V takes") {
    std::vector<std::vector<float>> const rows(4, {5, 4, 3, 2, 1});
    // an entry of a lane is 2 * 4 floats; 4 lanes
    CHECK(kept_by(rows, 2, kv::in_bytes{3 * 4 * 32})[3] == ordinals{0, 1, 2});
    CHECK(kept_by(rows, 2, kv::in_bytes{3 * 4 * 32 - 1})[3] == ordinals{0, 1});
    CHECK(kept_by(rows, 2, kv::in_bytes{3 * 4 * 32}, kv::codec::f16)[0].size() == 5);
    CHECK(kept_by(rows, 2, kv::in_bytes{2 * 4 * 32}, kv::codec::bf16)[0].size() == 4);
    CHECK(kept_by(rows, 2, kv::in_bytes{0})[0].empty());
    CHECK(kept_by(rows, 2, kv::in_bytes{std::int64_t{1} << 60})[0].size() == 5);
  }

  TEST_CASE("budgets out of range are refused where they are used, and print what they are") {
    std::vector<std::vector<float>> const row{{1, 2}};
    CHECK(error_of([&] { kept_by(row, 1, kv::per_layer{-1}); }) ==
          "make_state: budget.tokens = -1, but a count cannot be negative");
    CHECK_THROWS_AS(kept_by(row, 1, kv::per_sequence{1, 1.5}), kv::invalid_argument);
    CHECK_THROWS_AS(kept_by(row, 1, kv::drop_ratio{1.5}), kv::invalid_argument);
    CHECK_THROWS_AS(kept_by(row, 1, kv::drop_ratio{std::numeric_limits<double>::quiet_NaN()}), kv::invalid_argument);
    CHECK_THROWS_AS(kept_by(row, 1, kv::in_bytes{-1}), kv::invalid_argument);
    CHECK(kv::to_string(kv::per_layer{64}).find("scope=layer") != std::string::npos);
    CHECK(kv::to_string(kv::per_sequence{64}).find("scope=global") != std::string::npos);
  }
}
