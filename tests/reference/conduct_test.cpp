// SPDX-License-Identifier: Apache-2.0
// How the reference behaves where quick code goes wrong: nothing visible, NaN, ties, too many forced entries.

#include "cache_model.hpp"
#include "heavy_hitters.hpp"
#include "methods.hpp"
#include "rope.hpp"
#include "support/test.hpp"

namespace reference = kvpolicy_reference;
using reference::flags;
using reference::key_domain;
using reference::lane_attention;
using reference::pool_kind;
using reference::reduction;
using reference::reduction_order;
using reference::row;

namespace {

using ordinals = std::vector<int>;
double const quiet_nan = std::numeric_limits<double>::quiet_NaN();

ordinals best(row const& scores, int budget) {
  return reference::select(scores, flags(scores.size(), false), budget).kept;
}

/// Three keys of ones and two rows at positions 1 and 2.
lane_attention small_lane() {
  return {.keys = {{1}, {1}, {1}}, .key_positions = {0, 1, 2}, .queries = {{{1}, {1}}}, .query_positions = {1, 2}};
}

reference::lane_model history_of(int length) {
  reference::lane_model model{1};
  for (int p = 0; p < length; ++p) model.append({p, {std::sin(p), std::cos(p)}, {1.0 * p}, {10.0 * p}});
  return model;
}

}  // namespace

TEST_SUITE("reference") {
  TEST_CASE("A row that sees no key gives zeros") {
    lane_attention lane = small_lane();
    lane.key_positions = {5, 6, 7};
    CHECK(reference::attention_mass(lane, {}) == row{0, 0, 0});
    lane.key_positions = {1, 2, 3};
    CHECK(reference::attention_mass(lane, {.domain = key_domain::past}) == row{0, 0, 0});
    lane.queries = {{}};
    lane.query_positions = {};
    CHECK(reference::attention_mass(lane, {.rows = reduction::max}) == row{0, 0, 0});
  }

  TEST_CASE("A NaN key spoils every visible key of the rows that see it, and no other row") {
    lane_attention lane = small_lane();
    lane.keys[2] = {quiet_nan};
    auto const weights = reference::attention_weights(lane, {});
    CHECK(weights[0][0] == row{.5, .5, 0});
    for (double const weight : weights[0][1]) CHECK(std::isnan(weight));
    for (auto const how : {reduction::sum, reduction::mean, reduction::max, reduction::last}) {
      CHECK(std::isnan(reference::attention_mass(lane, {.rows = how})[0]));
    }
    CHECK(reference::attention_mass(lane, {.domain = key_domain::past}) == row{2, 0, 0});
  }

  TEST_CASE("A NaN in one head stays in the mass of the group, wherever the group is reduced") {
    lane_attention lane = small_lane();
    lane.queries.push_back({{quiet_nan}, {quiet_nan}});
    for (auto const how : {reduction::sum, reduction::mean, reduction::max}) {
      for (auto const order :
           {reduction_order::rows_then_group, reduction_order::group_then_rows, reduction_order::group_on_logits}) {
        CHECK(std::isnan(reference::attention_mass(lane, {.group = how, .order = order})[0]));
      }
    }
  }

  TEST_CASE("Rows are reduced by sum, mean, maximum or the last one") {
    CHECK(reference::attention_mass(small_lane(), {.rows = reduction::sum})[1] == doctest::Approx(.5 + 1. / 3));
    CHECK(reference::attention_mass(small_lane(), {.rows = reduction::mean})[1] == doctest::Approx((.5 + 1. / 3) / 2));
    CHECK(reference::attention_mass(small_lane(), {.rows = reduction::max})[1] == doctest::Approx(.5));
    CHECK(reference::attention_mass(small_lane(), {.rows = reduction::last})[1] == doctest::Approx(1. / 3));
    CHECK_THROWS_AS(reference::attention_mass(small_lane(), {.group = reduction::last}), std::invalid_argument);
  }

  TEST_CASE("A softmax of logits near a thousand does not overflow") {
    lane_attention lane = small_lane();
    lane.keys = {{1000}, {1000}, {999}};
    CHECK(reference::attention_weights(lane, {})[0][0] == row{.5, .5, 0});
    CHECK(reference::attention_weights(lane, {})[0][1][2] == doctest::Approx(std::exp(-1.) / (2 + std::exp(-1.))));
  }

  TEST_CASE("Pooling stops at the tail and refuses even widths") {
    CHECK(reference::pooled({3, 0, 0, 9}, {pool_kind::average, 3}, 1) == row{1, 1, 0, 9});
    CHECK(reference::pooled({-3, -1, -2, 9}, {pool_kind::maximum, 3}, 1) == row{-1, -1, -1, 9});
    CHECK(reference::pooled({3, 6}, {pool_kind::average, 3}, 5) == row{3, 6});
    CHECK(reference::pooled({6, 9}, {pool_kind::average, 5}, 0) == row{3, 3});
    CHECK_THROWS_AS(reference::pooled({1, 2}, {pool_kind::maximum, 2}, 0), std::invalid_argument);
    CHECK(std::isnan(reference::pooled({quiet_nan, 1, 2}, {pool_kind::maximum, 3}, 0)[1]));
  }

  TEST_CASE("NaN is kept only when nothing else is left, and is counted") {
    CHECK(best({quiet_nan, -reference::infinity, quiet_nan}, 1) == ordinals{1});
    CHECK(best({quiet_nan, -reference::infinity, quiet_nan}, 2) == ordinals{0, 1});
    CHECK(reference::select({quiet_nan, 1, quiet_nan}, {true, false, false}, 2).nan_candidates == 1);
  }

  TEST_CASE("Ties go to the lower ordinal, and the two zeros tie") {
    CHECK(best({-0.0, 0.0, -0.0}, 1) == ordinals{0});
    CHECK(best({1, 2, 2, 2}, 2) == ordinals{1, 2});
  }

  TEST_CASE("Forced entries count inside the budget and are all kept above it") {
    CHECK(reference::select({9, 8, 0, 7}, {false, false, true, false}, 2).kept == ordinals{0, 2});
    auto const over = reference::select({9, 8, 0, 7}, {false, true, true, true}, 2);
    CHECK(over.kept == ordinals{1, 2, 3});
    CHECK(over.forced_over_budget == 1);
    CHECK(best({1, 2}, 0) == ordinals{});
  }

  TEST_CASE("Nothing happens up to the budget and the slack, and then the budget is kept") {
    CHECK(best({1, 2, 3}, 3) == ordinals{0, 1, 2});
    row const scores{1, 2, 3, 4, 5};
    flags const none(5, false);
    CHECK(reference::select(scores, none, 2, 3).kept.size() == 5);
    CHECK(reference::select(scores, none, 2, 2).kept == ordinals{3, 4});
  }

  TEST_CASE("A pool of one lane is a selection, for every row of five scores over few values") {
    row const symbols{-1.0, -0.0, 0.0, 1.0, quiet_nan};
    for (int code = 0; code < 3125; ++code) {
      row scores;
      for (int j = 0, rest = code; j < 5; ++j, rest /= 5) scores.push_back(symbols[static_cast<std::size_t>(rest % 5)]);
      for (int budget = 0; budget <= 6; ++budget) {
        for (int floor = 0; floor <= 6; floor += 2) {
          auto const one = reference::select(scores, reference::ends(5, 1, 1), budget);
          auto const pool = reference::select_pooled({scores}, {reference::ends(5, 1, 1)}, budget, floor);
          REQUIRE(pool.kept[0] == one.kept);
          REQUIRE(pool.nan_candidates == one.nan_candidates);
          REQUIRE(pool.forced_over_budget == one.forced_over_budget);
        }
      }
    }
  }

  TEST_CASE("A pool honours floors, breaks ties by lane, and keeps its total exact") {
    std::vector<row> const scores{{1, 1, 1}, {9, 8, 7}};
    std::vector<flags> const none(2, flags(3, false));
    CHECK(reference::select_pooled(scores, none, 3, 0).kept == std::vector<ordinals>{{}, {0, 1, 2}});
    CHECK(reference::select_pooled(scores, none, 3, 1).kept == std::vector<ordinals>{{0}, {0, 1}});
    CHECK(reference::select_pooled({{1, 1}, {1, 1}}, {flags(2, false), flags(2, false)}, 3, 0).kept ==
          std::vector<ordinals>{{0, 1}, {0}});
    std::vector<flags> const crowded{{true, true, true}, {false, false, false}};
    CHECK(reference::select_pooled(scores, crowded, 2, 1).kept == std::vector<ordinals>{{0, 1, 2}, {}});
    CHECK(reference::select_pooled(scores, crowded, 2, 1).forced_over_budget == 1);
    CHECK(reference::select_pooled(scores, crowded, 4, 2).kept == std::vector<ordinals>{{0, 1, 2}, {0}});
    CHECK(reference::select_pooled(scores, none, 4, 0, 2).kept == std::vector<ordinals>{{0, 1, 2}, {0, 1, 2}});
    CHECK(reference::lane_floor(.29, 100) == 28);
  }

  TEST_CASE("Knorm keeps the keys of small norm") {
    row const scores = reference::knorm_scores({{3, 4}, {0, 0}, {1, 0}});
    CHECK(scores == row{-5, 0, -1});
    CHECK(best(scores, 2) == ordinals{1, 2});
  }

  TEST_CASE("StreamingLLM copes with no sinks, no window, and more sinks than entries") {
    CHECK(reference::streaming_llm_keep(4, 0, 2) == ordinals{2, 3});
    CHECK(reference::streaming_llm_keep(4, 2, 0) == ordinals{0, 1});
    CHECK(reference::streaming_llm_keep(2, 4, 1, 9) == ordinals{0, 1});
    CHECK(reference::streaming_llm_keep(6, 2, 3, 0, 1).size() == 6);
  }

  TEST_CASE("SnapKV looks from the last rows only") {
    lane_attention lane = small_lane();
    lane.keys = {{5}, {1}, {0}};
    auto const one = reference::snapkv(lane, {.window = 1, .budget = 2});
    CHECK(one.result.kept == ordinals{0, 2});
    CHECK(one.scores == reference::attention_mass(lane, {.rows = reduction::last}));
  }

  TEST_CASE("TOVA keeps one set for a layer and the last entry only if it scores") {
    lane_attention lane = small_lane();
    lane.keys = {{2}, {1}, {0}};
    lane_attention other = lane;
    other.keys = {{1}, {2}, {0}};
    CHECK(reference::tova({lane, other}, 2).result.kept == ordinals{0, 1});
    CHECK(reference::tova({lane, other}, 2, true).result.kept == ordinals{0, 2});
    CHECK(reference::tova({lane, other}, 3).result.kept == ordinals{0, 1, 2});
  }

  TEST_CASE("H2O drives from attention and copes with no heavy hitters and with no window") {
    lane_attention lane = small_lane();
    lane.queries.push_back(lane.queries.front());
    CHECK(reference::h2o_mass(lane)[2] == doctest::Approx(2. / 3));
    reference::h2o_lane recent_only{0, 2};
    CHECK(recent_only.step({9, 1, 1}) == ordinals{1, 2});
    reference::h2o_lane heavy_only{2, 0};
    CHECK(heavy_only.step({9, 1, 2}) == ordinals{0, 2});
    CHECK(heavy_only.accumulated() == row{9, 2});
  }

  TEST_CASE("Attention over the survivors equals attention over the full history with a mask") {
    reference::lane_model const history = history_of(6);
    reference::lane_model cache = history;
    cache.evict({0, 3, 4});
    CHECK(cache.positions() == ordinals{0, 3, 4});
    CHECK(cache.carried(1) == row{30});
    CHECK(cache.attend({1, 2}, 5)[0] == doctest::Approx(history.attend({1, 2}, 5, {0, 3, 4})[0]));
    CHECK(cache.attend({1, 2}, 3)[0] == doctest::Approx(history.attend({1, 2}, 5, {0, 3})[0]));
    cache.evict({});
    CHECK(cache.attend({1, 2}, 5) == row{0});
    CHECK(history.attend({1, 2}, 5, {}) == row{0});
  }

  TEST_CASE("A cache truncates by position, appends in order, and refuses a keep set that does not ascend") {
    reference::lane_model cache = history_of(6);
    cache.evict({0, 3, 4});
    cache.truncate(4);
    CHECK(cache.positions() == ordinals{0, 3});
    cache.append({4, {1, 1}, {7}, {}});
    CHECK(cache.positions() == ordinals{0, 3, 4});
    CHECK_THROWS_AS(cache.append({4, {1, 1}, {7}, {}}), std::invalid_argument);
    CHECK_THROWS_AS(cache.evict({1, 1}), std::invalid_argument);
    CHECK_THROWS_AS(cache.evict({3}), std::out_of_range);
  }

  TEST_CASE("Rotation keeps dot products a function of the distance, in both pairings") {
    row const q{1, 2, 3, 4};
    row const k{-1, .5, 2, 1};
    for (auto const pairing : {reference::rope_pairing::halves, reference::rope_pairing::pairs}) {
      reference::rope const how{100.0, pairing};
      double const near = reference::dot(reference::rotated(q, 5, how), reference::rotated(k, 3, how));
      double const far = reference::dot(reference::rotated(q, 105, how), reference::rotated(k, 103, how));
      CHECK(near == doctest::Approx(far));
      row const moved = reference::rotated(reference::rotated(k, 9, how), -6, how);
      for (std::size_t d = 0; d < 4; ++d) CHECK(moved[d] == doctest::Approx(reference::rotated(k, 3, how)[d]));
    }
    // theta 100, D = 4: frequencies 1 and 0.1. Halves turn channels (0, 2), pairs turn (0, 1).
    row const halves = reference::rotated({1, 0, 0, 0}, 1, {100.0, reference::rope_pairing::halves});
    row const pairs = reference::rotated({0, 0, 1, 0}, 1, {100.0, reference::rope_pairing::pairs});
    CHECK(halves[2] == doctest::Approx(std::sin(1.0)));
    CHECK(pairs[3] == doctest::Approx(std::sin(0.1)));
  }
}
