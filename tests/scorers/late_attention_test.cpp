// SPDX-License-Identifier: Apache-2.0
// late_attention and pyramid_infer: the last part of the rows scores, later rows count more, and layers keep less and
// less.

#include <numbers>

#include "reference/methods.hpp"
#include "support/specs.hpp"
#include "support/whole_prompt.hpp"

namespace late_attention_test {

using namespace kvpolicy_test;

/// The attention of the last part of the rows to the entries of one layer, of which later rows count more.
reference::row scores_of(mock_cache& cache, mock_queries& queries, int layer, int rows, double ramp) {
  int const heads = cache.model().kv_heads;
  reference::row mean;
  for (int h = 0; h < heads; ++h) {
    reference::lane_attention const lane = reference_lane(cache, queries, cache.lane_at(layer * heads + h));
    std::vector<reference::matrix> weights = reference::attention_weights(lane, {});
    mean.resize(lane.keys.size());
    for (reference::matrix& head : weights) {
      auto const used = std::min(head.size(), as_size(rows));
      for (std::size_t r = 0; r < used; ++r) {
        double const of_row = used > 1 ? 1 + (ramp - 1) * static_cast<double>(r) / static_cast<double>(used - 1) : 1;
        auto const& p = head[head.size() - used + r];
        double const share = of_row / static_cast<double>(used * weights.size() * as_size(heads));
        for (std::size_t e = 0; e < p.size(); ++e) mean[e] += share * p[e];
      }
    }
  }
  return mean;
}

int part_of(double part, int count) { return static_cast<int>(part * count + 1e-9); }

/// The number of entries that a layer keeps.
int share_of(int layer, int layers, int count, double first, double last, bool cosine, int least) {
  double const far = layers > 1 ? static_cast<double>(layer) / (layers - 1) : 0;
  double const at = cosine ? (1 - std::cos(std::numbers::pi * far)) / 2 : far;
  return std::min(count, std::max(least, part_of(first + (last - first) * at, count)));
}

void keeps_less_and_less() {
  whole_prompt prompt(any_prompt_shape());
  auto& [shape, cache, positions, count, queries] = prompt;

  double const part = *rc::gen::element(0.0, 0.2, 0.3, 1.0), first = *rc::gen::element(1.0, 0.9, 0.5),
               last = *rc::gen::element(0.3, 0.0, 0.7);
  float const ramp = *rc::gen::element(1.0f, 1.2f, 3.0f);
  bool const cosine = any_bool();
  int const least = *rc::gen::element(0, 3, 64);
  kv::any_policy const policy =
      kv::parse("pyramid_infer(rows=" + kv::to_string(part) + ", ramp=" + kv::to_string(ramp) +
                ", first=" + kv::to_string(first) + ", last=" + kv::to_string(last) +
                ", curve=" + (cosine ? "cosine" : "linear") + ", least=" + kv::to_string(least) + ", sinks=2)");
  kv::host_executor exec(*rc::gen::element(1, 3));
  auto [state, plan] = state_and_plan(exec, policy, cache.view());
  kv::queries const rows{queries.view()};
  kv::any_signals const in = kv::signals{cache.lanes(), kv::keys_of(cache.view()), rows};
  observe_and_decide(exec, policy, in, state, plan);
  int const used = std::max(1, part_of(part, count));
  for (int layer = 0; layer < shape.model.layers; ++layer) {
    reference::row score = scores_of(cache, queries, layer, used, static_cast<double>(ramp));
    for (int e = 0; e < count; ++e) {
      if (e >= count - used || positions[as_size(e)] < 2) score[as_size(e)] = 1e9;
    }
    int const share = share_of(layer, shape.model.layers, count, first, last, cosine, least);
    std::vector<int> order(as_size(count));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      return score[as_size(a)] != score[as_size(b)] ? score[as_size(a)] > score[as_size(b)] : a < b;
    });
    int kept = share;
    while (kept < count && score[as_size(order[as_size(kept)])] == 1e9) ++kept;
    bool const is_near = kept > 0 && kept < count &&
                         score[as_size(order[as_size(kept - 1)])] - score[as_size(order[as_size(kept)])] < 1e-6;
    if (is_near) continue;
    std::vector<int> expected(order.begin(), order.begin() + kept);
    std::sort(expected.begin(), expected.end());
    RC_ASSERT(listed(plan.keep(), layer) == expected);
  }
}

TEST_SUITE("scorers/late_attention") {
  TEST_CASE("the rows of the last part score, later ones more, and deeper layers keep less") {
    holds("keep sets", 300, keeps_less_and_less);
  }

  TEST_CASE("three rows count 1, 1.1 and 1.2") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 3}, .shared_entries = true});
    cache.put({}, {0, 1});
    cache.write(of::keys, {}, 0, {std::log(0.6), std::log(0.5), std::log(0.1)});
    cache.write(of::keys, {}, 1, {std::log(0.4), std::log(0.5), std::log(0.9)});
    mock_queries rows(cache, kv::codec::f32, 3, 3);
    for (int r = 0; r < 3; ++r) {
      rows.set_position(0, r, 1);
      std::vector<double> one(3, 0.0);
      one[as_size(r)] = std::sqrt(3.0);
      rows.write(0, 0, 0, r, one);
    }
    kv::host_executor exec;
    std::vector<float> made(2);
    kv::lanes const batch = cache.lanes();
    kv::score_view const out = kv::contiguous_scores(batch, kv::granularity::layer, made.data(), 2);
    auto const view = rows.view();
    exec.reserve(kv::detail::scratch_of_verb<kv::ops::compute_attention_mass_t, kv::host_executor::backend>(
        cache.model(), batch));
    kv::ops::compute_attention_mass(
        exec, kv::keys_of(cache.view()), view,
        {.rows = kv::reduction::mean, .weight = {.by = kv::weight_of_row::ramp, .last = 1.2f}}, out);
    CHECK(made[0] == doctest::Approx(0.423333).epsilon(1e-5));
    CHECK(made[1] == doctest::Approx(0.676667).epsilon(1e-5));
  }

  TEST_CASE("fields out of range, a budget beside it and a part of rows beside a number are refused") {
    says(parse_error, "parse: ")({
        {"pyramid_infer(rows=1.5)",
         "column 1: pyramid_infer: late_attention.rows = 1.5, but a part of the entries, 0 to 1"},
        {"pyramid_infer(last=-1)", "column 1: pyramid_infer: depth.last = -1, but a part of the budget, 0 to 1"},
        {"pyramid_infer(sinks=-1)", "column 1: pyramid_infer.sinks = -1, but a count cannot be negative"},
        {"pyramid_infer | budget(10)", "column 17 = budget, but pyramid_infer says itself how many entries stay"},
        {"snapkv | budget(10, by=depth, least=-1)", "column 10: depth.least = -1, but a count cannot be negative"},
    });
    mock_cache cache({.shared_entries = true});
    mock_queries rows(cache, kv::codec::f32, 1, 1);
    kv::host_executor exec;
    std::vector<float> made(100);
    kv::score_view const out = kv::contiguous_scores(cache.lanes(), kv::granularity::layer, made.data(), 1);
    CHECK(error_of([&] {
            kv::ops::compute_attention_mass(exec, kv::keys_of(cache.view()), rows.view(),
                                            {.last_rows = 2, .last_part = 0.5}, out);
          }) == "compute_attention_mass: last_rows = 2, but last_part says how many rows are used");
  }
}

}  // namespace late_attention_test
