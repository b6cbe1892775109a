// SPDX-License-Identifier: Apache-2.0
// CAKE scores entries by the attention that they receive and by how much it changes.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/attention_moments.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/pool.hpp>
#include <kvpolicy/ops/row_stats.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/moments.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/recorders/query_ring.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by the mean and the variance of the attention that the last `window` query rows pay to it (Qin et
/// al. 2025, arXiv:2503.12491, section 4.3).
///
///     p   = softmax(q k / sqrt(D)) over all keys, causal inside the window      q: the last `window` rows
///     s_h = pool(mean over rows of p  +  gamma var(p))                          of each query head h
///     s   = mean over the group's query heads of s_h                            (before the window)
///
/// The entries of the window are forced. Beside the scores it leaves the entropy and the variance of each lane's
/// attention, by which the allotter `moments` shares a budget out. The plan has 3 N + 3 floats more for each lane.
struct cake {
  int window = 32;  ///< w, the number of last query rows that score; their entries are kept
  pooling pool = avg_pool{5};
  float gamma = 200;

  static constexpr auto name = "cake";
  static constexpr auto fields() {
    return make_fields(field{"window", &cake::window}, field{"pool", &cake::pool}, field{"gamma", &cake::gamma});
  }
  using needs = kvpolicy::needs<keys, recent_queries>;
  using verbs = kvpolicy::verbs<ops::attention_moments_t, ops::pool_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr phase when = phase::prefill;
  static constexpr int lane_numbers = moments::lane_numbers;
  static constexpr bool shares_out = true;

  void check(char const* call) const {
    expects(window >= 2, call, "cake.window", window, "a variance is one of at least two rows");
    expects(pool.width >= 1 && pool.width % 2 == 1, call, "cake.pool", pool.width, "a pool has an odd width");
    expects(gamma >= 0, call, "cake.gamma", gamma, "the weight of a variance, 0 or more");
  }
  [[nodiscard]] constexpr recent forces() const { return {window}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{query_ring{window}}; }
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch, shape const&) {
    return 3 * batch.size() + rows_of_scores(batch, std::int64_t{lane_numbers} * batch.size());
  }

  /// Adds a head's part of the score.
  struct add_head {
    by_lane<float> head;
    float share;
    bool first;
    KVPOLICY_HD float operator()(float old, entry at) const {
      float const part = share * head.row(at.lane)[at.ordinal];
      return first ? part : old + part;
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    keys const& k = in.template get<keys>();
    auto const& rows = in.template get<recent_queries>();
    int const heads = rows.heads / out.lanes.heads;
    std::int64_t const lanes = out.lanes.size();
    auto const spare = [&](int i) {
      float* const first = out.spare + lanes * lane_numbers + i * lanes * out.lanes.capacity;
      return contiguous_scores(out.lanes, granularity::lane, first, out.lanes.capacity);
    };
    score_view const of_head = spare(0), variance = spare(1), entropy = spare(2);
    for (int h = 0; h < heads; ++h) {
      ops::attention_moments(exec, k, rows, {.head = h, .last_rows = window, .gamma = gamma, .accumulate = h > 0},
                             {variance.rows, entropy.rows}, of_head);
      ops::pool(exec, pool, of_head, window);
      ops::map(exec, out, add_head{of_head.rows, 1.0f / static_cast<float>(heads), h == 0});
    }
    by_lane<float> numbers = numbers_of_lanes(out, lane_numbers);
    ops::row_stats(exec, entropy, everything{}, statistic::sum, numbers);
    ++numbers.data;
    ops::row_stats(exec, variance, everything{}, statistic::sum, numbers);
  }

  friend bool operator==(cake const&, cake const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
