// SPDX-License-Identifier: Apache-2.0
// The reference of admission and selection against numbers worked out apart from it, and against other ways to say the
// same: the gates, the vertical slash, the two caches of a lane, DuoAttention's table, Quest's pages.

#include "dual_cache.hpp"
#include "pages.hpp"
#include "support/test.hpp"
#include "write_gate.hpp"

namespace reference = kvpolicy_reference;
using kvpolicy_test::dice;
using reference::dual_lane;
using reference::fate;
using reference::flags;
using reference::gated_token;
using reference::matrix;
using reference::row;
using reference::victim;

namespace {

using ordinals = std::vector<int>;
double const quiet_nan = std::numeric_limits<double>::quiet_NaN();

doctest::Approx about(double value, double relative) { return doctest::Approx(value).epsilon(relative).scale(0); }

ordinals range(int begin, int end) {
  ordinals result;
  for (int j = begin; j < end; ++j) result.push_back(j);
  return result;
}

std::vector<gated_token> tokens_of(row const& gates, int begin, int end) {
  std::vector<gated_token> result;
  for (int j = begin; j < end; ++j) result.push_back({j, gates[static_cast<std::size_t>(j)]});
  return result;
}

/// Gates among which the threshold 0.5 itself, NaN and its neighbours are common.
row some_gates(dice& any, int count) {
  row result;
  for (int j = 0; j < count; ++j) result.push_back(any.one_of<double>({0.0, 0.25, 0.5, 0.5, 0.75, quiet_nan}));
  return result;
}

/// The mask's row said with other words: of the tokens before the window those admitted, at most `cap` of them.
ordinals expected_global(row const& gates, int count, reference::dual_options const& how) {
  ordinals result;
  for (int j = 0; j < count - how.window; ++j) {
    double const gate = gates[static_cast<std::size_t>(j)];
    bool const in = how.admit.strict ? gate > how.admit.threshold : gate >= how.admit.threshold;
    if (in && (how.cap < 0 || static_cast<int>(result.size()) < how.cap)) result.push_back(j);
  }
  return result;
}

matrix some_rows(dice& any, int count, int width) {
  matrix result(static_cast<std::size_t>(count), row(static_cast<std::size_t>(width)));
  for (row& one : result) {
    for (double& x : one) x = any.between(-3, 3);
  }
  return result;
}

/// A lane whose query heads, with so many rows each, attend with these weights, a row of them for each head and row.
reference::lane_attention attending(matrix const& weights, int rows) {
  reference::lane_attention made;
  for (std::size_t j = 0; j < weights[0].size(); ++j) {
    made.key_positions.push_back(static_cast<int>(j));
    row key;
    for (row const& one : weights) key.push_back(std::log(one[j]));
    made.keys.push_back(key);
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    row query(weights.size(), 0.0);
    query[i] = std::sqrt(static_cast<double>(weights.size()));
    if (i % static_cast<std::size_t>(rows) == 0) made.queries.emplace_back();
    made.queries.back().push_back(query);
  }
  for (int r = 0; r < rows; ++r) made.query_positions.push_back(static_cast<int>(weights[0].size()) + r);
  return made;
}

}  // namespace

TEST_SUITE("reference") {
  TEST_CASE("The logarithm of a sigmoid keeps its digits where the sigmoid is 1") {
    CHECK(reference::log_sigmoid(8) == about(-3.354064e-4, 1e-6));
    CHECK(reference::log_sigmoid(10) == about(-4.539890e-5, 1e-6));
    CHECK(reference::log_sigmoid(-3) == about(-3.048587, 1e-6));
    CHECK(reference::log_sigmoid(100) == about(-3.720075976020836e-44, 1e-12));
    CHECK(reference::log_sigmoid(-1000) == -1000);
    CHECK(std::isnan(reference::log_sigmoid(quiet_nan)));
  }

  TEST_CASE("A write gate is a perceptron on two normed keys") {
    // Two channels, three hidden units; the numbers come from another program, in double precision.
    reference::write_gate const gate{.pre_norm = {1, 2},
                                     .post_norm = {.5, -1},
                                     .fc1 = {{{1, 0, 0, 0}, {0, .5, -1, 0}, {-.5, 0, 0, 2}}, {.1, -.2, .3}},
                                     .fc2 = {{{1, -2, .5}}, {.25}}};
    CHECK(gate({3, 4}, {-4, 3}) == about(0.14328924914502097, 1e-12));
    CHECK(gate({0, 0}, {0, 0}) == about(0.6376007070562095, 1e-12));
    CHECK(gate({1e-3, 0}, {0, 1}) == about(0.7627217259006414, 1e-12));
    CHECK(std::isnan(gate({quiet_nan, 0}, {0, 1})));
  }

  TEST_CASE("A retention gate has a number for each KV head") {
    reference::retention_gate const gate{.fc1 = {{{1, -1, .5}, {0, 2, 1}}, {.5, -.5}},
                                         .fc2 = {{{1, 1}, {-2, .5}}, {8, 10}}};
    row const made = gate({1, 2, -1});
    REQUIRE(made.size() == 2);
    CHECK(made[0] == about(-4.355722760878114e-05, 1e-12));
    CHECK(made[1] == about(-8.351542601350392e-06, 1e-12));
  }

  TEST_CASE("A gate at the threshold admits unless the comparison is strict, and a NaN never does") {
    CHECK(reference::admitted({.05, .1, .2, quiet_nan}, {}) == flags{false, true, true, false});
    CHECK(reference::admitted({.05, .1, .2, quiet_nan}, {.strict = true}) == flags{false, false, true, false});
    CHECK(reference::admitted({-1, quiet_nan, 2}, {.threshold = -1e9}) == flags{true, false, true});
  }

  TEST_CASE("WG-KV's example: what each of five tokens sees, and the step after them") {
    flags const admit{false, true, false, false, false, false};
    std::vector<ordinals> const mask{{0}, {0, 1}, {1, 2}, {1, 2, 3}, {1, 3, 4}, {1, 4, 5}};
    for (int i = 0; i < 6; ++i) CHECK(reference::visible(i, admit, 2) == mask[static_cast<std::size_t>(i)]);
    row const gates{0, 1, 0, 0, 0, 0};
    dual_lane lane({.window = 2});
    lane.append(tokens_of(gates, 0, 5));
    CHECK(lane.local() == ordinals{3, 4});
    CHECK(lane.global() == ordinals{1});
    CHECK(reference::ring_slots(5, 5, 2) == ordinals{3, 4});
    lane.append({{5, 0}});
    CHECK(reference::ring_slots(5, 6, 2) == ordinals{5, 4});
    CHECK(reference::ring_slots(5, 8, 2) == ordinals{7, 6});
    CHECK(reference::ring_slots(1, 3, 4) == ordinals{0, 1, 2});
    CHECK(lane.seen() == ordinals{1, 4, 5});
    CHECK(lane.left() ==
          std::vector<victim>{{0, fate::refused}, {1, fate::promoted}, {2, fate::refused}, {3, fate::refused}});
  }

  TEST_CASE("The released code's slash begins where that of its block's first query does") {
    flags const none(131, false);
    CHECK(reference::visible(130, none, 64) == range(67, 131));
    CHECK(reference::block_visible(130, none, 64) == range(65, 131));
    dice any{1};
    for (int round = 0; round < 50; ++round) {
      int const window = any.between(1, 9), block = any.between(1, 8), count = any.between(1, 30);
      flags const admit = reference::admitted(some_gates(any, count), {.threshold = .5});
      for (int i = 0; i < count; ++i) {
        ordinals const exact = reference::visible(i, admit, window);
        CHECK(reference::block_visible(i, admit, window, 1) == exact);
        CHECK(reference::block_visible(i / block * block, admit, window, block) ==
              reference::visible(i / block * block, admit, window));
        ordinals const wide = reference::block_visible(i, admit, window, block);
        CHECK(std::includes(wide.begin(), wide.end(), exact.begin(), exact.end()));
        CHECK(wide.size() <= exact.size() + static_cast<std::size_t>(i % block));
      }
    }
  }

  TEST_CASE("Every step sees its row of the mask, in whatever chunks the tokens came") {
    dice any{2};
    for (int round = 0; round < 100; ++round) {
      reference::dual_options const how{.window = any.between(1, 6),
                                        .admit = {.threshold = .5, .strict = any.chance(50)},
                                        .cap = any.chance(50) ? -1 : any.between(0, 4)};
      int const count = any.between(0, 3 * how.window + 1);
      row const gates = some_gates(any, count);
      flags const admit = reference::admitted(gates, how.admit);
      dual_lane whole{how}, chunked{how}, stepped{how};
      whole.append(tokens_of(gates, 0, count));
      for (int begin = 0; begin < count;) {
        int const end = any.between(begin, count);
        chunked.append(tokens_of(gates, begin, end));
        begin = end;
      }
      for (int i = 0; i < count; ++i) {
        stepped.append(tokens_of(gates, i, i + 1));
        if (how.cap < 0) CHECK(stepped.seen() == reference::visible(i, admit, how.window));
      }
      for (dual_lane const* lane : {&whole, &chunked, &stepped}) {
        CHECK(lane->local() == range(std::max(0, count - how.window), count));
        CHECK(lane->global() == expected_global(gates, count, how));
        CHECK(lane->left() == whole.left());
        CHECK(static_cast<int>(lane->left().size()) == std::max(0, count - how.window));
      }
    }
  }

  TEST_CASE("A cap keeps the first, and has room again after an eviction") {
    dual_lane lane({.window = 1, .cap = 2});
    lane.append(tokens_of(row(5, 1.0), 0, 5));
    CHECK(lane.global() == ordinals{0, 1});
    CHECK(lane.left() ==
          std::vector<victim>{{0, fate::promoted}, {1, fate::promoted}, {2, fate::over_cap}, {3, fate::over_cap}});
    lane.keep_global({1});
    lane.append({{5, 1.0}, {6, 1.0}});
    CHECK(lane.global() == ordinals{1, 4});
    CHECK(lane.pages(2) == 1);
    CHECK(lane.pages(1) == 2);
    CHECK(dual_lane({.window = 1}).pages() == 0);
  }

  TEST_CASE("An eviction over admitted tokens looks at the largest of the group and at neighbours, and drops a tenth") {
    row const early{.05, .05, .55, .05, .05, .05, .05, .05, .05, .05}, flat(10, .1);
    row const late{.05, .05, .05, .05, .05, .05, .05, .05, .55, .05};
    auto kept = [](matrix const& weights, double share) {
      return reference::admitted_eviction(attending(weights, 1), share).result.kept;
    };
    CHECK(kept({early, late}, .1) == ordinals{0, 1, 2, 3, 4, 6, 7, 8, 9});
    CHECK(kept({early, late}, .0999) == range(0, 10));
    CHECK(kept({early, flat}, .1) == range(0, 9));
    CHECK(kept({early, flat}, .3) == range(0, 7));
    CHECK(kept({{}, {}}, .1).empty());
    // The maximum of the group comes before the sum over rows: .55, and not .50, in the last entry.
    matrix const weights{{.1, .2, .3, .4}, {.4, .3, .2, .1}, {.25, .25, .25, .25}, {.7, .1, .1, .1}};
    row const scores = reference::admitted_eviction(attending(weights, 2)).scores;
    REQUIRE(scores.size() == 4);
    CHECK(scores[2] == about(.95, 1e-12));
    CHECK(scores[3] == about(.55, 1e-12));
  }

  TEST_CASE("A draft makes nobody leave, sees what it will see, and leaves no trace when it is rolled back") {
    dice any{3};
    for (int round = 0; round < 100; ++round) {
      reference::dual_options const how{
          .window = any.between(1, 5), .admit = {.threshold = .5}, .cap = any.between(-1, 3), .max_draft = 6};
      row const gates = some_gates(any, 40);
      dual_lane lane{how}, plain{how};
      int length = 0;
      while (length < 30) {
        int const drafts = any.between(0, 6), undone = any.between(0, drafts),
                  accepted = any.between(0, drafts - undone);
        ordinals const local = lane.local(), global = lane.global();
        dual_lane ahead = plain;
        for (int k = length; k < length + drafts; ++k) {
          lane.draft(tokens_of(gates, k, k + 1).front());
          ahead.append(tokens_of(gates, k, k + 1));
          CHECK(lane.seen() == ahead.seen());
        }
        CHECK(std::pair{lane.local(), lane.global()} == std::pair{local, global});
        lane.roll_back(undone);
        CHECK(lane.drafts() == range(length, length + drafts - undone));
        lane.commit(accepted);
        plain.append(tokens_of(gates, length, length + accepted));
        length += accepted;
        CHECK(std::pair{lane.local(), lane.global()} == std::pair{plain.local(), plain.global()});
        CHECK(lane.left() == plain.left());
        if (accepted == 0) {
          for (dual_lane* one : {&plain, &lane}) one->append(tokens_of(gates, length, length + 1));
          ++length;
        }
      }
    }
    dual_lane lane({.window = 2, .max_draft = 1});
    lane.draft({0, 1});
    CHECK_THROWS_AS(lane.draft({1, 1}), std::invalid_argument);
    CHECK_THROWS_AS(lane.append({{1, 1}}), std::invalid_argument);
  }

  TEST_CASE("Nothing admitted is a sliding window, everything admitted the whole cache") {
    for (double const gate : {0.0, 1.0}) {
      dual_lane lane({.window = 4});
      for (int t = 0; t < 12; ++t) {
        lane.append({{t, gate}});
        CHECK(lane.seen() == range(gate > 0 ? 0 : std::max(0, t - 3), t + 1));
      }
    }
  }

  TEST_CASE("Local attention sees its sinks and its window; a retrieval lane of DuoAttention sees all") {
    CHECK(reference::visible(9, reference::admitted_sinks(10, 2), 3) == ordinals{0, 1, 7, 8, 9});
    CHECK(reference::visible(3, reference::admitted_sinks(4, 2), 3) == ordinals{0, 1, 2, 3});
    CHECK(reference::visible(9, reference::duo_admitted(10, 2, false), 3) == ordinals{0, 1, 7, 8, 9});
    CHECK(reference::visible(9, reference::duo_admitted(10, 2, true), 3) == range(0, 10));
    CHECK(reference::admitted_sinks(2, 5) == flags{true, true});
  }

  TEST_CASE("DuoAttention's table is cut at a half, or by sparsity with ties to the lower lane") {
    CHECK(reference::retrieval_lanes({{.5, .49}, {quiet_nan, 1}}) == std::vector<flags>{{true, false}, {false, true}});
    CHECK(reference::quantile({4, 1, 3, 2}, .5) == 2.5);
    CHECK(reference::quantile({4, 1, 3, 2}, 1) == 4);
    matrix const different{{.1, .9, .3}, {.7, .2, .4}};
    for (double const sparsity : {.1, .25, .5, .6, .75, .99}) {
      double const cut = reference::quantile({.1, .9, .3, .7, .2, .4}, sparsity);
      std::vector<flags> expected;
      for (row const& layer : different) expected.push_back(reference::admitted(layer, {.threshold = cut}));
      CHECK(reference::retrieval_lanes(different, sparsity) == expected);
    }
    matrix const tied{{1, 1}, {1, 1}};  // three neighbours between four values: half of them is above the second
    CHECK(reference::retrieval_lanes(tied, .5) == std::vector<flags>{{true, true}, {false, false}});
    CHECK(reference::retrieval_lanes({{.2, 3}, {1, 7}}, .7) == std::vector<flags>{{false, true}, {false, false}});
    CHECK(reference::retrieval_lanes(tied, 0) == std::vector<flags>{{true, true}, {true, true}});
    CHECK(reference::retrieval_lanes(tied, 1) == std::vector<flags>{{false, false}, {false, false}});
  }

  TEST_CASE("TRIM-KV's example: the age that is added decides who goes") {
    // log beta of 0.9, 0.5, 0.3 at t = 2, down to two of three
    row const log_beta{std::log(.9), std::log(.5), std::log(.3)};
    std::vector<ordinals> const kept{{0, 2}, {}, {0, 1}};
    for (int const offset : {0, 2}) {
      row scores;
      for (int j = 0; j < 3; ++j) scores.push_back((2 - j + offset) * log_beta[static_cast<std::size_t>(j)]);
      CHECK(reference::select(scores, flags(3, false), 2).kept == kept[static_cast<std::size_t>(offset)]);
    }
  }

  TEST_CASE("Quest's example: a bound that no key attains wins") {
    matrix const keys{{1, -1}, {0, 2}, {-2, 0}, {3, 1}};
    CHECK(reference::page_scores(keys, {{1, -1}}, 2) == row{2, 3});
    CHECK(reference::quest_pages({2, 3}, 2, 2) == ordinals{1});
    CHECK(reference::quest_pages({3, 2}, 2, 2) == ordinals{1});
    CHECK(reference::select({2, 3}, flags(2, false), 1).kept == ordinals{1});
    CHECK(reference::page_scores(keys, {{1, -1}, {-1, 0}}, 2) == row{2, 3});
    CHECK(reference::page_scores(keys, {{-1, 0}, {0, 1}}, 2) == row{2, 2});
    CHECK(reference::page_scores({{1, 1}, {2, 0}, {5, 5}}, {{1, 1}}, 2) == row{3, 10});
  }

  TEST_CASE("Quest reads the current page and the best others, ties to the lower page") {
    row const scores{1, 4, 4, 0, 4, 2};
    CHECK(reference::quest_pages(scores, 4, 12) == ordinals{1, 2, 5});
    CHECK(reference::quest_pages(scores, 4, 15) == ordinals{1, 2, 5});
    CHECK(reference::quest_pages(scores, 4, 3) == ordinals{5});
    CHECK(reference::quest_pages(scores, 4, 24) == range(0, 6));
    CHECK(reference::quest_pages(scores, 4, 3, true) == range(0, 6));
    CHECK(reference::quest_pages({}, 4, 0).empty());
    CHECK(reference::quest_pages({quiet_nan, -reference::infinity, 1}, 1, 2) == ordinals{1, 2});
    CHECK(reference::entries_of({0, 2}, 4, 10) == ordinals{0, 1, 2, 3, 8, 9});
  }

  TEST_CASE("No key has a larger product with the query than its page's bound; pages of one entry attain it") {
    dice any{4};
    for (int round = 0; round < 50; ++round) {
      int const width = any.between(1, 5), count = any.between(1, 20), page = any.between(1, 6);
      matrix const keys = some_rows(any, count, width), queries = some_rows(any, any.between(1, 4), width);
      row products;
      for (row const& key : keys) {
        row of_heads;
        for (row const& query : queries) of_heads.push_back(reference::dot(query, key));
        products.push_back(*std::max_element(of_heads.begin(), of_heads.end()));
      }
      row const scores = reference::page_scores(keys, queries, page);
      REQUIRE(static_cast<int>(scores.size()) == reference::pages_of(count, page));
      for (int j = 0; j < count; ++j)
        CHECK(scores[static_cast<std::size_t>(j / page)] >= products[static_cast<std::size_t>(j)]);
      CHECK(reference::page_scores(keys, queries, 1) == products);
      int const budget = any.between(1, count);
      CHECK(reference::quest_pages(products, 1, budget) ==
            reference::select(products, reference::ends(count, 0, 1), budget).kept);
    }
  }

  TEST_CASE("Over global pages the window's tokens are paid first, and a partial page is read if anything is") {
    row const scores{3, 1, 2, 0};
    CHECK(reference::quest_global_pages(scores, 14, 4, 16, 8) == ordinals{0, 3});
    CHECK(reference::quest_global_pages(scores, 16, 4, 16, 8) == ordinals{0, 2});
    CHECK(reference::quest_global_pages(scores, 14, 4, 9, 8) == ordinals{3});
    CHECK(reference::quest_global_pages(scores, 14, 4, 8, 8).empty());
    CHECK(reference::quest_global_pages(scores, 14, 4, 100, 8) == range(0, 4));
  }
}
