// SPDX-License-Identifier: Apache-2.0
// peak_attention and mp_cache_prompt: the most attention of any of the last rows, on average over a layer's heads.

#include "reference/methods.hpp"
#include "support/specs.hpp"
#include "support/whole_prompt.hpp"

namespace peak_attention_test {

using namespace kvpolicy_test;

/// The most attention that one of the last rows pays to each entry, where every row is the mean over a layer's heads.
reference::row scores_of(mock_cache& cache, mock_queries& queries, int layer, int rows) {
  int const heads = cache.model().kv_heads;
  reference::matrix mean;
  for (int h = 0; h < heads; ++h) {
    reference::lane_attention const lane = reference_lane(cache, queries, cache.lane_at(layer * heads + h));
    std::vector<reference::matrix> const weights = reference::attention_weights(lane, {});
    mean.resize(weights[0].size(), reference::row(lane.keys.size(), 0.0));
    for (reference::matrix const& head : weights) {
      for (std::size_t r = 0; r < head.size(); ++r) {
        for (std::size_t e = 0; e < head[r].size(); ++e) {
          mean[r][e] += head[r][e] / static_cast<double>(weights.size() * as_size(heads));
        }
      }
    }
  }
  reference::row most(mean.empty() ? 0 : mean[0].size(), 0.0);
  for (std::size_t r = mean.size() - std::min(mean.size(), as_size(rows)); r < mean.size(); ++r) {
    for (std::size_t e = 0; e < most.size(); ++e) most[e] = std::max(most[e], mean[r][e]);
  }
  return most;
}

void keeps_what_any_row_reads() {
  whole_prompt prompt(any_prompt_shape());
  auto& [shape, cache, positions, count, queries] = prompt;

  double const part = *rc::gen::element(0.0, 0.2, 0.3, 1.0), of_long = *rc::gen::element(0.0, 0.1, 0.7);
  int const longer = *rc::gen::element(24000, 5, count);
  float const threshold = *rc::gen::element(0.001f, 0.05f, 0.2f, 2.0f, 0.0f);
  kv::any_policy const policy =
      kv::parse("mp_cache_prompt(rows=" + kv::to_string(part) + ", long_rows=" + kv::to_string(of_long) +
                ", long=" + kv::to_string(longer) + ", threshold=" + kv::to_string(threshold) + ")");
  RC_ASSERT(kv::parse(kv::to_string(policy)) == policy);
  kv::host_executor exec(*rc::gen::element(1, 3));
  auto [state, plan] = state_and_plan(exec, policy, cache.view());
  kv::queries const rows{queries.view()};
  kv::any_signals const in = kv::signals{cache.lanes(), kv::keys_of(cache.view()), rows};
  observe_and_decide(exec, policy, in, state, plan);
  int const used = std::max(1, static_cast<int>((count > longer ? of_long : part) * count + 1e-9));
  for (int layer = 0; layer < shape.model.layers; ++layer) {
    reference::row const score = scores_of(cache, queries, layer, used);
    std::vector<int> expected;
    bool is_near = false;
    for (int e = 0; e < count; ++e) {
      bool const forced = e >= count - used;
      double const over = score[as_size(e)] - static_cast<double>(threshold);
      is_near = is_near || (!forced && std::fabs(over) < 1e-6 && score[as_size(e)] != 0);
      if (forced || over >= 0) expected.push_back(e);
    }
    if (!is_near) RC_ASSERT(listed(plan.keep(), layer) == expected);
  }
}

TEST_SUITE("scorers/peak_attention") {
  TEST_CASE("an entry stays if the mean of all heads is at least the threshold in any row") {
    holds("keep sets", 300, keeps_what_any_row_reads);
  }

  TEST_CASE("heads come before rows: what two heads read in different rows does not add up") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 2}, .shared_entries = true});
    for (int h = 0; h < 2; ++h) {
      cache.put(cache.lane_at(h), {0, 1, 2});
      for (int e = 0; e < 3; ++e)
        cache.write(of::keys, cache.lane_at(h), e, {e == 0 ? 40.0 : 0.0, e == 1 ? 40.0 : 0.0});
    }
    mock_queries rows(cache, kv::codec::f32, 2, 2);
    for (int r = 0; r < 2; ++r) {
      rows.set_position(0, r, 2);
      rows.write(0, 0, 0, r, {r == 0 ? 9.0 : 0.0, r == 0 ? 0.0 : 9.0});  // the first head reads entry 0, then entry 1
      rows.write(0, 0, 1, r, {r == 0 ? 0.0 : 9.0, r == 0 ? 9.0 : 0.0});  // the second one the other way round
    }
    kv::host_executor exec;
    exec.reserve(kv::detail::scratch_of_verb<kv::ops::compute_attention_mass_t, kv::host_executor::backend>(
        cache.model(), cache.lanes()));
    std::vector<float> room(as_size(cache.options().bound));
    kv::score_view const to =
        kv::contiguous_scores(cache.lanes(), kv::granularity::layer, room.data(), cache.options().bound);
    kv::ops::compute_attention_mass(exec, kv::keys_of(cache.view()), rows.view(),
                                    {.rows = kv::reduction::max,
                                     .group = kv::reduction::mean,
                                     .order = kv::reduction_order::all_heads_then_rows,
                                     .lanes = kv::reduction::mean},
                                    to);
    CHECK(room[0] == doctest::Approx(0.5));
    CHECK(room[1] == doctest::Approx(0.5));
    CHECK(room[2] == doctest::Approx(0.0));
  }

  TEST_CASE("fields out of range and a budget or a pick beside it are refused") {
    says(parse_error, "parse: ")({
        {"mp_cache_prompt(rows=-1)",
         "column 1: mp_cache_prompt: peak_attention.rows = -1, but a part of the entries, 0 to 1"},
        {"mp_cache_prompt(long_rows=2)",
         "column 1: mp_cache_prompt: peak_attention.long_rows = 2, but a part of the entries, 0 to 1"},
        {"mp_cache_prompt(long=-1)",
         "column 1: mp_cache_prompt: peak_attention.long = -1, but a count cannot be negative"},
        {"mp_cache_prompt | budget(10)", "column 19 = budget, but at_least keeps however many entries there are"},
        {"mp_cache_prompt | top", "column 19 = top, but mp_cache_prompt has one of its own"},
    });
    CHECK(kv::to_string(kv::parse("mp_cache_prompt")) ==
          "peak_attention(rows=0.2, long_rows=0.1, long=24000) | unlimited | at_least(least=0.001, strict=false, "
          "unbounded=true)");
  }
}

}  // namespace peak_attention_test
