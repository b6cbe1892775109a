// top_k of long rows, where a sample brackets the cut, against "sort everything"; and what protections say of a lane at
// once against what they say of each entry.

#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/kvpolicy.hpp>
#include <limits>
#include <vector>

#include "reference/selection.hpp"
#include "support/dice.hpp"
#include "support/holds.hpp"
#include "support/owned_keep.hpp"
#include "support/owned_lanes.hpp"
#include "support/scores.hpp"
#include "support/troubled_scores.hpp"

namespace {

using namespace kvpolicy_test;

constexpr float infinite = std::numeric_limits<float>::infinity();

enum class shaped { normal, softmax, halves, levels, equal, rising, falling, nan, hidden, two, ties, last_bits, steps };

/// A row as models give them, and as they hurt a selection by samples.
std::vector<float> row_of(shaped what, int count, dice& random) {
  std::vector<float> row;
  for (int e = 0; e < count; ++e) {
    auto const bell = static_cast<float>(random.real(1) + random.real(1) + random.real(1));
    auto const at = static_cast<float>(e) / static_cast<float>(count);
    switch (what) {
      case shaped::normal:
        row.push_back(bell);
        break;
      case shaped::softmax:
        row.push_back(std::exp(20 * bell));
        break;
      case shaped::halves:
        row.push_back(bell > 0 ? bell : 0);
        break;
      case shaped::levels:
        row.push_back(std::round(bell * 10));
        break;
      case shaped::equal:
        row.push_back(2);
        break;
      case shaped::rising:
        row.push_back(at);
        break;
      case shaped::falling:
        row.push_back(-at);
        break;
      case shaped::nan:
        row.push_back(random.chance(1) ? NAN : bell);
        break;
      case shaped::hidden:
        row.push_back(random.chance(90) ? -infinite : bell);
        break;
      case shaped::two:
        row.push_back(random.chance(3) ? 2.0f : 1.0f);
        break;
      case shaped::ties:
        row.push_back(troubled_score(random, trouble::ties));
        break;
      case shaped::last_bits:
        row.push_back(troubled_score(random, trouble::last_bits));
        break;
      case shaped::steps:
        row.push_back(std::floor(at * 16) + (random.chance(50) ? 1e-6f : 0));
        break;
    }
  }
  return row;
}

reference::selection expected_of(std::vector<float> const& row, int const* position, kv::safe const& protects,
                                 int budget) {
  reference::flags forced;
  int const count = static_cast<int>(row.size());
  for (int e = 0; e < count; ++e) forced.push_back(position[e] < protects.sinks || e >= count - protects.recent);
  return reference::select(as_row(row), forced, budget);
}

void check_row(std::vector<float> const& row, kv::safe const& protects, int budget, kv::isa simd_level) {
  kv::host_executor exec(1, simd_level);
  int const count = static_cast<int>(row.size());
  exec.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, count));
  owned_lanes const lanes(count);
  owned_scores scores(lanes.view());
  std::copy(row.begin(), row.end(), scores.row(0, 0).data());
  owned_keep keep(scores.view());
  auto const rule = kv::detail::decision_rule{protects, kv::nothing{}, kv::per_lane{budget}, kv::over_budget{}};
  static_assert(requires(kv::lane_entries const& of) { rule.candidates(of); });
  kv::ops::top_k(exec, scores.view(), rule, keep.view());
  auto const expected = expected_of(row, lanes.view().position.row({}), protects, budget);
  RC_ASSERT(keep.kept(0) == expected.kept);
  RC_ASSERT(keep.report().nan_scores == expected.nan_candidates);
  RC_ASSERT(keep.report().forced_over_budget == (expected.forced_over_budget > 0 ? 1 : 0));
}

}  // namespace

TEST_SUITE("ops/top_k: long rows") {
  TEST_CASE("the best of a long row are those of a sorted one, whatever the scores and the instructions") {
    holds(
        "sampled top_k == sort",
        [] {
          dice random(*rc::gen::inRange<std::uint64_t>(0, 1u << 20));
          auto const what =
              *rc::gen::element(shaped::normal, shaped::softmax, shaped::halves, shaped::levels, shaped::equal,
                                shaped::rising, shaped::falling, shaped::nan, shaped::hidden, shaped::two, shaped::ties,
                                shaped::last_bits, shaped::steps);
          int const count = *rc::gen::element(4097, 2047, 2048, 2049, 2080, 9000, 33000);
          kv::safe const protects{*rc::gen::element(0, 4, 17), *rc::gen::element(0, 32, 33, 5000)};
          int const budget = *rc::gen::oneOf(rc::gen::inRange(0, count + 1), rc::gen::inRange(0, 60),
                                             rc::gen::inRange(count - 60, count));
          auto const simd_level = *rc::gen::element(kv::isa::portable, kv::isa::avx2, kv::isa::avx512);
          RC_LOG() << static_cast<int>(what) << ", " << count << " entries, " << kv::to_string(protects) << ", budget "
                   << budget << '\n';
          check_row(row_of(what, count, random), protects, budget, simd_level);
        },
        500);
  }

  TEST_CASE("a row that deceives its sample is selected from all the same") {
    // The sample looks at pieces of four, evenly spread; here just those are high, and here just those are low.
    for (bool const high : {true, false}) {
      int const count = 8192;
      std::vector<float> row(static_cast<std::size_t>(count), high ? 0.0f : 10.0f);
      for (int i = 0; i < 1024; ++i) {
        std::int64_t const from = static_cast<std::int64_t>(i / 4 * 4) * (count - 4) / 1020;
        row[static_cast<std::size_t>(from + i % 4)] = static_cast<float>(high ? 1 + i : -i);
      }
      for (int const budget : {1, 500, 1024, 1500, 4000, 7168, 8000}) {
        kv::host_executor exec;
        owned_lanes const lanes(count);
        auto const expected = expected_of(row, lanes.view().position.row({}), {0, 0}, budget);
        owned_scores scores(lanes.view());
        std::copy(row.begin(), row.end(), scores.row(0, 0).data());
        owned_keep keep(scores.view());
        kv::ops::top_k(exec, scores.view(), kv::plain_top_k{budget}, keep.view());
        CHECK(keep.kept(0) == expected.kept);
      }
    }
  }
}

TEST_SUITE("protect: candidates") {
  TEST_CASE("outside its run a protection protects every entry, inside none") {
    holds("candidates == not protected", [] {
      dice random(*rc::gen::inRange<std::uint64_t>(0, 1u << 20));
      int const count = *rc::gen::inRange(0, 40);
      std::vector<int> const position = random.subset(60, count);
      int const budget = random.below(50);
      auto const check = [&](auto const& protects) {
        kv::lane_entries const all{{}, count, budget, position.data()};
        kv::ordinal_range const free = protects.candidates(all);
        for (int e = 0; e < count; ++e) {
          kv::entry const one{{}, e, count, position[static_cast<std::size_t>(e)], budget};
          RC_ASSERT(protects(one) == !(e >= free.begin && e < free.end));
        }
      };
      kv::sinks const first{random.below(70)};
      kv::recent const last{random.below(50)};
      check(kv::nothing{});
      check(kv::everything{});
      check(first);
      check(last);
      check(kv::safe{random.below(70), random.below(50)});
      check(first | last);
      check(kv::nothing{} | last);
      check((first | last) | kv::everything{});
      check(kv::h2o::recent_window{random.below(20) - 1, random.below(20) - 1});
    });
  }

  TEST_CASE("one that protects the middle says nothing of a run, nor does what it is part of") {
    CHECK(!kv::has_candidates<kv::position_span>);
    CHECK(!kv::has_candidates<kv::either<kv::position_span, kv::sinks>>);
    CHECK(kv::has_candidates<kv::either<kv::recent, kv::sinks>>);
  }
}
