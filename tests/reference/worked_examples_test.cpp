// SPDX-License-Identifier: Apache-2.0
// The reference against numbers worked out by hand and checked apart from it. Rows are compared to the digits printed.

#include "heavy_hitters.hpp"
#include "methods.hpp"
#include "rope.hpp"
#include "support/test.hpp"

namespace reference = kvpolicy_reference;
using kvpolicy_test::check_digits;
using reference::key_domain;
using reference::lane_attention;
using reference::matrix;
using reference::pool_kind;
using reference::reduction;
using reference::reduction_order;
using reference::row;

namespace {

using ordinals = std::vector<int>;

row first(row const& values, std::size_t count) {
  return row(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count));
}

/// SnapKV's example: head dimension 1, one query head, eight keys, a window of two rows.
lane_attention snapkv_example() {
  return {.keys = {{0}, {1}, {2}, {0}, {3}, {1}, {0}, {1}},
          .key_positions = {0, 1, 2, 3, 4, 5, 6, 7},
          .queries = {{{1}, {0.5}}},
          .query_positions = {6, 7}};
}

/// One row of two heads whose logits are (2, 0, 0) and (0, 1.5, 1.4): with D = 4 and unit keys, q = 2 * logits.
lane_attention group_example() {
  return {.keys = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}},
          .key_positions = {0, 1, 2},
          .queries = {{{4, 0, 0, 0}}, {{0, 3, 2.8, 0}}},
          .query_positions = {2}};
}

row group_example_mass(reduction group, reduction_order order) {
  return reference::attention_mass(group_example(), {.group = group, .order = order});
}

row prefix_mass(lane_attention const& lane, reference::mass_options const& options) {
  return first(reference::attention_mass(lane, options), 6);
}

ordinals snapkv_keep(reference::pooling pool) {
  return reference::snapkv(snapkv_example(), {.window = 2, .budget = 4, .pool = pool}).result.kept;
}

row snapkv_scores(reference::pooling pool) {
  return first(reference::snapkv(snapkv_example(), {.window = 2, .budget = 4, .pool = pool}).scores, 6);
}

}  // namespace

TEST_SUITE("reference") {
  TEST_CASE("StreamingLLM keeps the sinks and the recent window") {
    CHECK(reference::streaming_llm_keep(10, 2, 3) == ordinals{0, 1, 7, 8, 9});
    CHECK(reference::streaming_llm_keep(5, 2, 3) == ordinals{0, 1, 2, 3, 4});
  }

  TEST_CASE("StreamingLLM makes room for a turn of two tokens") {
    CHECK(reference::streaming_llm_keep(10, 2, 3, 2) == ordinals{0, 1, 9});
    CHECK(reference::streaming_llm_keep(10, 2, 3, 4) == ordinals{0, 1});
  }

  TEST_CASE("StreamingLLM in kvpress at ratio one half scores a pruned middle with zero") {
    row scores(10, 1.0);
    for (std::size_t j = 4; j < 9; ++j) scores[j] = 0.0;  // sinks 4, pruned 10 - int(10 * 0.5) = 5
    CHECK(reference::select(scores, reference::ends(10, 0, 0), 5).kept == ordinals{0, 1, 2, 3, 9});
  }

  TEST_CASE("SnapKV's rows of attention are causal inside the window") {
    auto const weights = reference::attention_weights(snapkv_example(), {});
    REQUIRE(weights.size() == 1);
    check_digits(weights[0][0], {.027846, .075695, .205759, .027846, .559312, .075695, .027846, 0}, 6);
    check_digits(weights[0][1], {.066023, .108854, .179470, .066023, .295897, .108854, .066023, .108854}, 6);
    CHECK(weights[0][0][7] == 0.0);
  }

  TEST_CASE("SnapKV sums the window's rows over the prefix") {
    check_digits(prefix_mass(snapkv_example(), {}), {.093870, .184549, .385230, .093870, .855208, .184549}, 6);
    check_digits(snapkv_scores({}), {.093870, .184549, .385230, .093870, .855208, .184549}, 6);
  }

  TEST_CASE("SnapKV's pools damp the edges by zeros in the average and not at all in the maximum") {
    row const average = snapkv_scores({pool_kind::average, 3});
    check_digits(average, {.092806, .221216, .221216, .444769, .377876, .346586}, 6);
    check_digits(snapkv_scores({pool_kind::maximum, 3}), {.184549, .385230, .385230, .855208, .855208, .855208}, 6);
  }

  TEST_CASE("SnapKV with a prefix budget of two keeps a different pair for every pool") {
    CHECK(snapkv_keep({}) == ordinals{2, 4, 6, 7});
    CHECK(snapkv_keep({pool_kind::average, 3}) == ordinals{3, 4, 6, 7});
    CHECK(snapkv_keep({pool_kind::maximum, 3}) == ordinals{3, 4, 6, 7});  // 3, 4 and 5 tie
  }

  TEST_CASE("SnapKV's maximum makes a plateau of exact ties") {
    row const scores = snapkv_scores({pool_kind::maximum, 3});
    CHECK(scores[3] == scores[4]);
    CHECK(scores[4] == scores[5]);
  }

  TEST_CASE("An average that does not count its padding would keep another pair") {
    row scores = snapkv_scores({pool_kind::average, 3});
    scores.front() *= 1.5;  // two neighbours instead of three
    scores.back() *= 1.5;
    check_digits(scores, {.139209, .221216, .221216, .444769, .377876, .519879}, 6);
    CHECK(reference::select(scores, reference::ends(6, 0, 0), 2).kept == ordinals{3, 5});
  }

  TEST_CASE("Without the causal mask inside the window SnapKV's mass is detectably smaller") {
    lane_attention lane = snapkv_example();
    lane.query_positions = {7, 7};  // both rows see the whole window
    check_digits(prefix_mass(lane, {}), {.091910, .179222, .370751, .091910, .815851, .179222}, 6);
  }

  TEST_CASE("R-KV's importance leaves the window out of the denominator and takes the mean of the rows") {
    reference::mass_options const r_kv{.domain = key_domain::past,
                                       .rows = reduction::mean,
                                       .group = reduction::max,
                                       .order = reduction_order::group_on_logits};
    row const mass = reference::attention_mass(snapkv_example(), r_kv);
    check_digits(first(mass, 6), {.054330, .104894, .214580, .054330, .466971, .104894}, 6);
    CHECK(mass[6] == 0.0);
    CHECK(mass[7] == 0.0);
  }

  TEST_CASE("Where the group is reduced, before or after the softmax, decides the mass") {
    auto const after = reduction_order::rows_then_group;
    check_digits(group_example_mass(reduction::mean, after), {.4459, .2882, .2659}, 4);
    check_digits(group_example_mass(reduction::max, after), {.7870, .4699, .4252}, 4);
    check_digits(group_example_mass(reduction::max, reduction_order::group_on_logits), {.4640, .2814, .2546}, 4);
  }

  TEST_CASE("A maximum over neighbours and a mean over heads do not commute") {
    row const a{.9, 0, 0, 0, .2};
    row const b{0, 0, .8, 0, .1};
    reference::pooling const maximum{pool_kind::maximum, 3};
    matrix const each{reference::pooled(a, maximum, 0), reference::pooled(b, maximum, 0)};
    check_digits(reference::reduced(each, reduction::mean, 5), {.45, .85, .40, .50, .15}, 12);
    row const mean = reference::reduced({a, b}, reduction::mean, 5);
    check_digits(reference::pooled(mean, maximum, 0), {.45, .45, .40, .40, .15}, 12);
  }

  TEST_CASE("A maximum over the group and a sum over the rows do not commute") {
    std::vector<matrix> const weights{{{.1, .2, .3, .4}, {.4, .3, .2, .1}}, {{.25, .25, .25, .25}, {.7, .1, .1, .1}}};
    reference::mass_options const group_first{.group = reduction::max, .order = reduction_order::group_then_rows};
    reference::mass_options const rows_first{.group = reduction::max, .order = reduction_order::rows_then_group};
    check_digits(reference::reduced_weights(weights, group_first, 4), {.95, .55, .50, .50}, 12);
    check_digits(reference::reduced_weights(weights, rows_first, 4), {.95, .50, .50, .50}, 12);
  }

  TEST_CASE("H2O accumulates through prefill and steps, and its scores move with the survivors") {
    reference::h2o_lane lane{1, 2};
    matrix const prefill{{1, 0, 0}, {.5, .5, 0}, {.2, .3, .5}};
    CHECK(lane.step(reference::reduced(prefill, reduction::sum, 3)) == ordinals{0, 1, 2});
    check_digits(lane.accumulated(), {1.7, .8, .5}, 12);

    CHECK(lane.step({.4, .1, .2, .3}) == ordinals{0, 2, 3});
    check_digits(lane.accumulated_before_drop(), {2.1, .9, .7, .3}, 12);
    check_digits(lane.accumulated(), {2.1, .7, .3}, 12);

    // The lane holds positions 0, 2, 3 and the new 4: ordinals 0, 2, 3 are positions 0, 3, 4.
    CHECK(lane.step({.2, .5, .2, .1}) == ordinals{0, 2, 3});
    check_digits(lane.accumulated_before_drop(), {2.3, 1.2, .5, .1}, 12);
    check_digits(lane.accumulated(), {2.3, .5, .1}, 12);
  }

  TEST_CASE("Masked H2O hides the position that just left the recent window for one step") {
    row scores{5, 1, 4, 1, 1, 1, 1, 9, 1, 1};
    auto const mask = reference::h2o_masked(scores, 2, 3);
    CHECK(mask.visible == ordinals{0, 2, 8, 9, 10});
    check_digits(mask.accumulated, {5, 0, 4, 0, 0, 0, 0, 9, 1, 1}, 12);  // 7 is hidden but keeps its score

    row next = mask.accumulated;
    next.push_back(1);                                                              // the step's own position, 10
    CHECK(reference::h2o_masked(next, 2, 3).visible == ordinals{0, 7, 9, 10, 11});  // 7 returns, 8 is hidden
  }

  TEST_CASE("A pooled budget goes where the scores are, as AdaKV does") {
    std::vector<row> const heads{{.5, .3, .1, .05, .05}, {.9, .02, .03, .03, .02}};
    std::vector<reference::flags> const forced(2, reference::ends(5, 0, 0));
    int const floor = reference::lane_floor(.2, 2);
    CHECK(floor == 0);
    auto const kept = reference::select_pooled(heads, forced, 4, floor).kept;
    CHECK(kept[0] == ordinals{0, 1, 2});
    CHECK(kept[1] == ordinals{0});
  }

  TEST_CASE("A key moved from position 3 to 1 is the raw key rotated to 1") {
    row const at_three = reference::rotated({1, 2}, 3, {});
    check_digits(at_three, {-1.272233, -1.838865}, 6);
    check_digits(reference::rotated(at_three, -2, {}), {-1.142640, 1.922076}, 6);
  }
}
