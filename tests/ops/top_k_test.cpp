// SPDX-License-Identifier: Apache-2.0
// top_k against "sort everything": exact, with ties, NaN, zeros of both signs, infinities and forced entries.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;
using ordinals = std::vector<int>;

constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

/// A rule whose forced entries are a list of flags, and which tolerates `slack` entries above its budget.
struct flagged {
  int k = 0;
  std::vector<reference::flags> const* forced = nullptr;  // a row a segment
  int slack = 0;
  kv::lanes lanes{};
  kv::granularity decides = kv::granularity::lane;
  int budget(kv::lane, int) const { return k; }
  bool triggers(int count, int budget) const { return count > budget + slack; }
  bool forces(kv::entry at) const {
    int const segment = kv::segment_of(lanes, decides, lanes.index(at.lane));
    return (*forced)[as_size(segment)][as_size(at.ordinal)];
  }
};

/// The same rule, which lists its forced entries, and each of them twice.
struct visited_twice : flagged {
  template <class Visit>
  void visit_forced(kv::lane_entries const& of, Visit const& visit) const {
    for (int e = 0; e < 2 * of.count; ++e) {
      if (forces(kv::entry{of.lane, e / 2, of.count, of.position[e / 2], of.budget})) visit(e / 2);
    }
  }
};

template <class Rule>
ordinals kept_of(std::vector<float> const& row, Rule const& rule, kv::report* report = nullptr) {
  static kv::host_executor exec;
  exec.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, 4200));
  owned_lanes const lanes(static_cast<int>(row.size()));
  owned_scores scores(lanes.view());
  std::copy(row.begin(), row.end(), scores.row(0, 0).data());
  owned_keep keep(scores.view());
  kv::ops::top_k(exec, scores.view(), rule, keep.view());
  if (report != nullptr) *report = keep.report();
  return keep.kept(0);
}

ordinals best_of(std::vector<float> const& row, int k) { return kept_of(row, kv::plain_top_k{k}); }

/// Visits every row of `length` values over the symbols.
template <class Visit>
void for_every_row(std::vector<float> const& symbols, int length, Visit const& visit) {
  std::vector<std::size_t> digits(as_size(length), 0);
  for (;;) {
    std::vector<float> row;
    for (std::size_t const digit : digits) row.push_back(symbols[digit]);
    visit(row);
    std::size_t at = 0;
    while (at < digits.size() && ++digits[at] == symbols.size()) digits[at++] = 0;
    if (at == digits.size()) return;
  }
}

}  // namespace

TEST_SUITE("ops/top_k") {
  TEST_CASE("NaN of either sign is kept only when nothing else is left") {
    CHECK(best_of({quiet_nan, 3, -quiet_nan}, 2) == ordinals{0, 1});
    CHECK(best_of({quiet_nan, -infinite, -quiet_nan}, 1) == ordinals{1});
  }

  TEST_CASE("the two zeros tie, and ties keep the lower ordinal") {
    CHECK(best_of({-0.0f, 0.0f, -0.0f}, 1) == ordinals{0});
    CHECK(best_of({0.0f, -0.0f, 1e-45f}, 2) == ordinals{0, 2});
    CHECK(best_of({7, 7, 7, 7}, 3) == ordinals{0, 1, 2});
  }

  TEST_CASE("a budget of none, of all and of more than all") {
    CHECK(best_of({1, 2, 3}, 0).empty());
    CHECK(best_of({1, 2, 3}, 3) == ordinals{0, 1, 2});
    CHECK(best_of({1, 2, 3}, 4000) == ordinals{0, 1, 2});
    CHECK(best_of({}, 0).empty());
    CHECK(best_of({}, 1).empty());
  }

  TEST_CASE("agrees with the reference on every row of up to 6 scores over {NaN, -inf, 0, 1}, for every k") {
    int checks = 0;
    for (int length = 0; length <= 6; ++length) {
      for_every_row({quiet_nan, -infinite, 0.0f, 1.0f}, length, [&](std::vector<float> const& row) {
        for (int k = 0; k <= length; ++k, ++checks) {
          auto const expected = reference::select(as_row(row), reference::flags(row.size(), false), k);
          REQUIRE(best_of(row, k) == expected.kept);
        }
      });
    }
    CHECK(checks == 36409);
  }

  TEST_CASE("agrees with the reference on every forced set of up to 5 entries over {NaN, 0, 1}, for every budget") {
    for (int length = 0; length <= 5; ++length) {
      for_every_row({quiet_nan, 0.0f, 1.0f}, length, [&](std::vector<float> const& row) {
        for (int mask = 0; mask < 1 << length; ++mask) {
          std::vector<reference::flags> forced(1);
          for (int e = 0; e < length; ++e) forced[0].push_back((mask >> e & 1) != 0);
          for (int budget = 0; budget <= length; ++budget) {
            kv::report report;
            flagged const rule{budget, &forced, 0, kv::lanes{.layer_end = 1, .heads = 1}};
            auto const expected = reference::select(as_row(row), forced[0], budget);
            REQUIRE(kept_of(row, rule, &report) == expected.kept);
            REQUIRE(report.nan_scores == expected.nan_candidates);
            REQUIRE((report.forced_over_budget == 1) == (expected.forced_over_budget > 0));
            REQUIRE(report.triggered == (budget < length ? 1 : 0));
          }
        }
      });
    }
  }

  TEST_CASE("agrees with the reference on ragged lanes, layers and tokens, and writes no score") {
    holds("top_k == reference", 300, [] {
      int const sequences = *rc::gen::inRange(1, 4);
      int const layers = *rc::gen::inRange(1, 4);
      int const heads = *rc::gen::inRange(1, 4);
      int const bound = *rc::gen::element(33, 1, 31, 32, 40, 300, 600, 2100);
      auto const decides = *rc::gen::element(kv::granularity::lane, kv::granularity::layer, kv::granularity::sequence);
      dice random(any_seed());
      trouble const what = any_trouble();
      std::vector<int> counts(as_size(sequences * layers * heads));
      for (int& each : counts) each = random.chance(50) ? bound : random.below(bound + 1);
      if (decides != kv::granularity::lane) std::fill(counts.begin(), counts.end(), random.below(bound + 1));
      owned_lanes lanes(sequences, layers, heads, bound, counts);
      if (random.chance(20)) lanes.set_drafts(0, *std::min_element(counts.begin(), counts.end()) > 0 ? 1 : 0);

      owned_scores scores(lanes.view(), decides);
      for (float& each : scores.all()) each = troubled_score(random, what);
      int const segments = scores.view().segments();
      int const percent = random.one_of<int>({0, 10, 100});
      std::vector<reference::flags> forced(as_size(segments));
      for (auto& row : forced) {
        for (int e = 0; e < bound; ++e) row.push_back(random.chance(percent));
      }
      flagged const rule{random.one_of<int>({0, 1, random.below(bound + 1), bound}), &forced, random.below(3),
                         lanes.view(), decides};
      owned_keep keep(scores.view());
      kv::host_executor exec(*rc::gen::element(1, 3));
      exec.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, bound));
      auto const before = as_row(scores.all());
      if (random.chance(50)) {
        kv::ops::top_k(exec, scores.view(), visited_twice{rule}, keep.view());
      } else {
        kv::ops::top_k(exec, scores.view(), rule, keep.view());
      }

      kv::report expected_report;
      for (int segment = 0; segment < segments; ++segment) {
        int const count = lanes.view().committed(scores.view().lane_of(segment));
        auto const row = as_row(scores.row(segment, count));
        reference::flags some = forced[as_size(segment)];
        some.resize(as_size(count));
        auto const expected = reference::select(row, some, rule.k, rule.slack);
        RC_ASSERT(keep.kept(segment) == expected.kept);
        RC_ASSERT(keep.view().entry_count[segment] == count);
        bool const triggered = count > rule.k + rule.slack;
        expected_report.triggered += triggered ? 1 : 0;
        expected_report.nan_scores += expected.nan_candidates;
        expected_report.forced_over_budget += triggered && expected.forced_over_budget > 0 ? 1 : 0;
        expected_report.over_budget += std::ssize(expected.kept) > rule.k ? 1 : 0;
      }
      RC_ASSERT(keep.report() == expected_report);
      auto const after = as_row(scores.all());
      RC_ASSERT(std::equal(before.begin(), before.end(), after.begin(),
                           [](double a, double b) { return a == b || (a != a && b != b); }));
    });
  }

  TEST_CASE("agrees with the reference on long rows with forced entries anywhere, for every budget") {
    dice random(11);
    for (int const length : {600, 2100}) {
      for (trouble const what : {trouble::ties, trouble::last_bits, trouble::anything}) {
        std::vector<float> row;
        std::vector<reference::flags> forced(1);
        for (int e = 0; e < length; ++e) {
          row.push_back(troubled_score(random, what));
          forced[0].push_back(random.chance(10));
        }
        for (int budget = 0; budget <= length; budget += length / 300) {
          kv::report report;
          visited_twice const rule{{budget, &forced, 0, kv::lanes{.layer_end = 1, .heads = 1}}};
          auto const expected = reference::select(as_row(row), forced[0], budget);
          REQUIRE(kept_of(row, rule, &report) == expected.kept);
          REQUIRE(report.nan_scores == expected.nan_candidates);
          REQUIRE((report.forced_over_budget == 1) == (expected.forced_over_budget > 0));
        }
      }
    }
  }

  TEST_CASE("workers that are busy at the same time do not disturb each other") {
    owned_lanes const lanes(1, 4, 8, 4097, std::vector<int>(32, 4097));
    owned_scores scores(lanes.view());
    dice random(3);
    for (float& each : scores.all()) each = troubled_score(random, trouble::anything);
    std::vector<ordinals> alone;
    for (int const threads : {1, 3, 3, 3}) {
      kv::host_executor exec(threads);
      exec.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, 4097));
      owned_keep keep(scores.view());
      kv::ops::top_k(exec, scores.view(), kv::plain_top_k{1000}, keep.view());
      std::vector<ordinals> kept;
      for (int segment = 0; segment < 32; ++segment) kept.push_back(keep.kept(segment));
      if (threads == 1) alone = kept;
      CHECK(kept == alone);
    }
  }

  TEST_CASE("finds the cut among 4097 scores that differ in their last bits") {
    dice random(7);
    std::vector<float> row;
    for (int e = 0; e < 4097; ++e) row.push_back(troubled_score(random, trouble::last_bits));
    for (int const k : {1, 2048, 4096}) {
      CHECK(best_of(row, k) == reference::select(as_row(row), reference::flags(4097, false), k).kept);
    }
  }

  TEST_CASE("refuses a keep set without room, of another granularity, and lanes of unequal counts") {
    owned_lanes const lanes(1, 1, 2, 4, {3, 2});
    owned_scores scores(lanes.view());
    owned_keep keep(scores.view());
    kv::host_executor exec;
    kv::keep_set small = keep.view();
    small.capacity = 7;
    CHECK(error_of([&] { kv::ops::top_k(exec, scores.view(), kv::plain_top_k{1}, small); }) ==
          "top_k: keep.capacity = 7, but every entry of every segment must fit");
    kv::keep_set layered = keep.view();
    layered.decides = kv::granularity::layer;
    CHECK(error_of([&] { kv::ops::top_k(exec, scores.view(), kv::plain_top_k{1}, layered); }) ==
          "top_k: keep.decides = 1, but scores and keep set are made by one granularity");
    owned_scores together(lanes.view(), kv::granularity::layer);
    CHECK(error_of([&] { kv::ops::top_k(exec, together.view(), kv::plain_top_k{1}, layered); }) ==
          "top_k: count = 2, but lanes that decide together hold equally many entries");
  }
}
