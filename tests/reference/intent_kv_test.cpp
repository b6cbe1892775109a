// SPDX-License-Identifier: Apache-2.0
// The reference of IntentKV against numbers worked out by hand, and against what its equations imply.

#include "intent_kv.hpp"

#include "support/test.hpp"

namespace reference = kvpolicy_reference;
using kvpolicy_test::check_digits;
using reference::head_matrices;
using reference::head_rows;
using reference::matrix;
using reference::row;

namespace {

using ordinals = std::vector<int>;

/// The worked example: one layer, two query heads on one KV head, D = 4.
head_rows example_memory(int turns, reference::memory_options const& how = {}) {
  head_rows memory = reference::no_memory(1, 2, 4);
  memory = reference::remembered(memory, {{{{1, 1, 0, 0}}, {{0, 0, 2, 0}}}}, how);
  if (turns > 1) memory = reference::remembered(memory, {{{{0, 0, 0, 1}}, {{1, 0, 0, 0}}}}, how);
  return memory;
}

reference::intent_sequence example_sequence() {
  return {.keys = {{{{1, 1, 0, 0}, {0, 0, 2, 0}, {0, 0, 0, 3}, {-1, 0, 0, 1}, {4, 0, 0, 0}}}},
          .positions = {0, 1, 2, 3, 4},
          .span_begin = 4,
          .span_end = 5};
}

reference::linear zeros(std::size_t out, std::size_t in) { return {matrix(out, row(in, 0.0)), row(out, 0.0)}; }

/// A head of the given sizes that adds nothing.
reference::residual_weights silent(std::size_t dims, std::size_t width, std::size_t hidden) {
  return {.w_q = zeros(width, 3 * dims + 1),
          .w_k = zeros(width, dims),
          .w_v = zeros(width, dims),
          .fc1 = zeros(hidden, 3 * dims + 1 + width),
          .fc2 = zeros(1, hidden)};
}

/// D = 1, d_c = 4, h = 1. Value c of the context is 10 c times the mean of a span key whose logits are -+ k k_span.
reference::residual_weights small_head() {
  reference::residual_weights head = silent(1, 4, 1);
  for (std::size_t c = 0; c < 4; ++c) {
    head.w_q.weight[c][0] = c % 2 == 0 ? 1.0 : -1.0;
    head.w_k.weight[c][0] = 1.0;
    head.w_v.weight[c][0] = 10.0 * static_cast<double>(c);
  }
  return head;
}

}  // namespace

TEST_SUITE("reference/intent_kv") {
  TEST_CASE("the memory of one turn is its span's unit vector, that of two is mostly the second's") {
    check_digits(example_memory(1)[0][0], {.707107, .707107, 0, 0}, 6);
    check_digits(example_memory(1)[0][1], {0, 0, 1, 0}, 6);
    check_digits(example_memory(2)[0][0], {.366702, .366702, 0, .855020}, 6);
    check_digits(example_memory(2)[0][1], {.855020, 0, .518596, 0}, 6);
  }

  TEST_CASE("a span's length counts in the literal reading and not in the normalised one") {
    head_rows const before = reference::remembered(reference::no_memory(1, 1, 2), {{{{1, 0}}}}, {});
    double const e = std::exp(-0.5);
    row const literal = reference::remembered(before, {{{{0, 10}}}}, {})[0][0];
    row const normalised = reference::remembered(before, {{{{0, 10}}}}, {.normalize_encoding = true})[0][0];
    check_digits(literal, {e / std::hypot(e, 10), 10 / std::hypot(e, 10)}, 12);
    check_digits(normalised, {e / std::hypot(e, 1), 1 / std::hypot(e, 1)}, 12);
  }

  TEST_CASE("the encoding is the mean of the rows; no rows and no length leave what there is") {
    head_rows const memory = reference::remembered(reference::no_memory(1, 1, 2), {{{{4, 0}, {0, 2}, {2, 4}}}}, {});
    check_digits(memory[0][0], {std::sqrt(.5), std::sqrt(.5)}, 12);
    row const next = reference::remembered(memory, {{{{2, 0}, {0, 0}}}}, {.lambda = 0})[0][0];
    double const x = 1 + std::sqrt(.5), y = std::sqrt(.5);
    check_digits(next, {x / std::hypot(x, y), y / std::hypot(x, y)}, 12);  // of a sum of rows, x would be 1 more
    CHECK(reference::remembered(memory, {{{}}}, {}) == memory);
    CHECK(reference::remembered(reference::no_memory(1, 1, 2), {{{{0, 0}}}}, {}) == reference::no_memory(1, 1, 2));
  }

  TEST_CASE("the query mode forgets earlier turns") {
    head_rows const memory = example_memory(2, {.forgets = true});
    CHECK(memory == head_rows{{{0, 0, 0, 1}, {1, 0, 0, 0}}});
  }

  TEST_CASE("the rule is a softmax over the candidates, summed over the heads") {
    auto const made = reference::intent_kv(example_sequence(), example_memory(2), {.budget = 4, .prefix = 1});
    check_digits(made.scores, {0, .674134, .913122, .412745, 0}, 6);
    CHECK(made.forced == reference::flags{true, false, false, false, true});
    CHECK(made.result.kept == ordinals{0, 1, 2, 4});
    CHECK(made.result.forced_over_budget == 0);
  }

  TEST_CASE("query head h reads KV head h div G, and nothing but the span's positions is in the span") {
    reference::intent_sequence const of{.keys = {{{{0}, {0}, {0}, {0}}, {{0}, {1}, {0}, {0}}}},
                                        .positions = {2, 5, 9, 10},
                                        .span_begin = 9,
                                        .span_end = 10};
    double const e = std::exp(1.0);
    row const rule = reference::intent_kv(of, {{{7}, {7}, {1}, {0}}}, {.budget = 2}).scores;
    check_digits(rule, {1 + 1 / (2 + e), 1 + e / (2 + e), 0, 1 + 1 / (2 + e)}, 12);
    CHECK(reference::intent_kv(of, {{{7}, {7}, {1}, {0}}}, {.budget = 2, .prefix = 5}).result.kept == ordinals{0, 2});
  }

  TEST_CASE("the context is of the span's live entries alone, and of none where it is switched off") {
    reference::intent_sequence const of{
        .keys = {{{{1}, {2}, {6}}}}, .positions = {0, 1, 4}, .span_begin = 3, .span_end = 7};
    reference::residual_weights head = silent(1, 4, 1);
    for (reference::row& weight : head.w_v.weight) weight[0] = 1;
    head.fc1.weight[0][4] = 1;  // the first channel of the context
    head.fc2.weight[0][0] = 1;
    head.alpha = 2;
    reference::intent_options how{.budget = 1, .residual = &head};
    check_digits(reference::intent_kv(of, {{{0}}}, how).scores,
                 {.5 + 2 * reference::gelu(6), .5 + 2 * reference::gelu(6), 0}, 12);
    how.cross_attention = false;
    check_digits(reference::intent_kv(of, {{{0}}}, how).scores, {.5, .5, 0}, 12);
  }

  TEST_CASE("forced entries stay whole above the budget, and nothing happens at it") {
    for (int const budget : {0, 1, 2}) {
      auto const made = reference::intent_kv(example_sequence(), example_memory(2), {.budget = budget, .prefix = 1});
      CHECK(made.result.kept == ordinals{0, 4});
      CHECK(made.result.forced_over_budget == 2 - budget);
    }
    auto const same = reference::intent_kv(example_sequence(), example_memory(2), {.budget = 5, .prefix = 1});
    CHECK(same.result.kept == ordinals{0, 1, 2, 3, 4});
    for (int const growth : {0, 1, 2, 3}) {
      auto const made =
          reference::intent_kv(example_sequence(), example_memory(2), {.budget = 3, .min_growth = growth});
      CHECK(made.result.kept.size() == (growth < 3 ? 3u : 5u));
    }
  }

  TEST_CASE("the sentinel's key is no mask: its logit is -22500 for one query and +7500 for another") {
    row const key(4, -1e4);
    row const against{1, -2, .5, -1};
    CHECK(reference::dot({1, 2, .5, 1}, key) / std::sqrt(4.0) == -22500);
    CHECK(reference::dot(against, key) / std::sqrt(4.0) == 7500);
    row const weights = reference::softmax({7400, 0, 7500}, {true, true, true});
    CHECK(weights[2] == 1.0);  // all on the dead slot: the output is its value, zero
    CHECK(reference::softmax({1, 0, 7500}, {true, true, false})[2] == 0.0);
  }

  TEST_CASE("the head has 214,274 parameters at D = 128, and what the formula says elsewhere") {
    CHECK(reference::parameters(silent(128, 128, 256)) == 214274);
    for (std::size_t const d : {2u, 64u, 80u}) {
      std::size_t const c = 8, h = 5;
      std::size_t const formula = (3 * d + 1) * c + c + 2 * (d * c + c) + (3 * d + 1 + c) * h + h + h + 1 + 1;
      CHECK(reference::parameters(silent(d, c, h)) == formula);
    }
  }

  TEST_CASE("GELU is the erf form") {
    CHECK(reference::gelu(0) == 0);
    check_digits({reference::gelu(1), reference::gelu(-1), reference::gelu(.5)}, {.841345, -.158655, .345731}, 6);
  }

  TEST_CASE("cross-attention has four heads of their own and no output projection") {
    row const phi{1, 0, 0, 0};
    row const context = reference::cross_attention(small_head(), phi, {{0}, {std::log(3.0)}});
    double const value = std::log(3.0);
    check_digits(context, {0, 10 * .25 * value, 20 * .75 * value, 30 * .25 * value}, 12);
    CHECK(reference::cross_attention(small_head(), phi, {}) == row(4, 0.0));
    // Wider heads divide by their root: two channels a head, each with half the logit.
    reference::residual_weights wide = silent(1, 8, 1);
    for (std::size_t c = 0; c < 8; ++c) {
      wide.w_q.weight[c][0] = 1.0 / std::sqrt(2.0);
      wide.w_k.weight[c][0] = wide.w_v.weight[c][0] = 1.0;
    }
    check_digits(reference::cross_attention(wide, phi, {{0}, {value}}), row(8, .75 * value), 12);
  }

  TEST_CASE("features are the mean key, the mean memory, their product and the raw rule") {
    head_matrices const keys{{{{1, 2}}, {{3, 4}}}, {{{5, 6}}, {{7, 0}}}};
    CHECK(reference::mean_keys(keys) == matrix{{4, 3}});
    CHECK(reference::mean_memory({{{1, 0}, {0, 1}}, {{1, 1}, {0, 0}}}) == row{.5, .5});
    CHECK(reference::features({4, 3}, {.5, -.5}, 7) == row{4, 3, .5, -.5, 2, -1.5, 7});
  }

  TEST_CASE("alpha is clipped, and a silent head or alpha = 0 is the rule") {
    auto const of = example_sequence();
    auto const memory = example_memory(2);
    row const rule = reference::intent_kv(of, memory, {.budget = 3}).scores;
    reference::residual_weights head = silent(4, 4, 2);
    CHECK(reference::intent_kv(of, memory, {.budget = 3, .residual = &head}).scores == rule);
    head.fc1.weight[0][0] = 1;  // the first channel of the mean key
    head.fc2 = {{{.5, 1}}, {.25}};
    for (double const alpha : {0.0, 1.0, 7.0, -7.0}) {
      head.alpha = alpha;
      row expected = rule;
      for (std::size_t j = 0; j < 4; ++j) {
        double const clipped = alpha > 5 ? 5 : alpha < -5 ? -5 : alpha;
        expected[j] += clipped * (.5 * reference::gelu(of.keys[0][0][j][0]) + .25);
      }
      check_digits(reference::intent_kv(of, memory, {.budget = 3, .residual = &head}).scores, expected, 12);
    }
  }
}
