// SPDX-License-Identifier: Apache-2.0
// R-KV keeps entries that are attended to and that do not repeat each other.
#pragma once

#include <array>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/logits.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/mean_row.hpp>
#include <kvpolicy/ops/normalise.hpp>
#include <kvpolicy/ops/pool.hpp>
#include <kvpolicy/ops/redundancy.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/recorders/query_ring.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Which of several similar entries does not count as redundant: the last one, or none.
enum class retained_similar { last, none };

[[nodiscard]] constexpr std::array<char const*, 2> names(retained_similar) { return {"last", "none"}; }

/// Scores each entry by its importance less its redundancy (Cai et al. 2025, arXiv:2505.24133), for models that reason
/// at length and repeat themselves.
///
///     p   = softmax of max over the group of q k / sqrt(D), over the entries before the window     q: its last rows
///     I   = pool(mean over rows of p)
///     R_j = softmax over j of mean over i of cos(k_i, k_j)          without the pairs (i, i) and (i, c_i)
///     s   = lambda I - (1 - lambda) R
///
/// c_i is the newest entry whose cosine with i is above `threshold`, or the oldest entry where none is, so that the
/// last of several similar entries stays (`retain`). The entries of the window are forced. It decides while decoding,
/// each time that a lane has `slack` + 1 entries more than its budget. The plan has 2 N + D floats more for each lane.
struct r_kv {
  int window = 8;  ///< w, the number of last query rows that score; their entries are kept
  float lambda = 0.07f;
  pooling pool = max_pool{7};
  float threshold = 0.5f;
  retained_similar retain = retained_similar::last;

  static constexpr auto name = "r_kv";
  static constexpr auto fields() {
    return make_fields(field{"window", &r_kv::window}, field{"lambda", &r_kv::lambda}, field{"pool", &r_kv::pool},
                       field{"threshold", &r_kv::threshold}, field{"retain", &r_kv::retain});
  }
  using needs = kvpolicy::needs<keys, recent_queries>;
  using verbs =
      kvpolicy::verbs<ops::compute_attention_mass_t, ops::pool_t, ops::mean_row_t, ops::logits_t, ops::redundancy_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr int slack = 127;  ///< of the published settings: `over_budget{r_kv::slack}`

  void check(char const* call) const {
    expects(window >= 1, call, "r_kv.window", window, "at least one row observes");
    expects(lambda >= 0 && lambda <= 1, call, "r_kv.lambda", lambda, "the part of importance, 0 to 1");
    expects(pool.width >= 1 && pool.width % 2 == 1, call, "r_kv.pool", pool.width, "a pool has an odd width");
    expects(threshold >= 0 && threshold <= 1, call, "r_kv.threshold", threshold, "it is a cosine, 0 to 1");
  }
  [[nodiscard]] constexpr recent forces() const { return {window}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{query_ring{window}}; }
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch, shape const& model) {
    return 2 * batch.size() + rows_of_scores(batch, std::int64_t{batch.size()} * model.head_dim);
  }

  /// Multiplies a product with a unit row by 1 / norm of the entry's key.
  struct over_norm {
    by_lane<float> inverse_norm;
    KVPOLICY_HD float operator()(float product, entry at) const {
      return product * inverse_norm.row(at.lane)[at.ordinal];
    }
  };
  /// The score of an entry of an importance and a redundancy.
  struct weighed {
    float lambda;
    by_lane<float> redundancy;
    KVPOLICY_HD float operator()(float importance, entry at) const {
      return lambda * importance - (1 - lambda) * redundancy.row(at.lane)[at.ordinal];
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    keys const& k = in.template get<keys>();
    std::int64_t const scores = std::int64_t{out.lanes.size()} * out.lanes.capacity;
    auto const spare = [&](std::int64_t from, int floats) {
      return contiguous_scores(out.lanes, granularity::lane, out.spare + from, floats);
    };
    score_view const redundant = spare(0, out.lanes.capacity);
    by_lane<float> const inverse_norm = spare(scores, out.lanes.capacity).rows;
    by_lane<float> const anchor = spare(2 * scores, k.rows.channels).rows;
    ops::mean_row(exec, out.lanes, k, {.unit = true, .inverse_norms = inverse_norm}, anchor);
    ops::logits(exec, k, one_row_a_lane(anchor, k.rows.channels, out.lanes), {.scale = 1.0f}, replaced{}, redundant);
    ops::map(exec, redundant, over_norm{inverse_norm});
    ops::redundancy(exec, k, inverse_norm, {threshold, retain == retained_similar::last}, redundant);
    ops::normalise(exec, normalising::softmax, redundant);
    ops::compute_attention_mass(exec, k, in.template get<recent_queries>(),
                                {.domain = key_domain::past,
                                 .rows = reduction::mean,
                                 .group = reduction::max,
                                 .order = reduction_order::group_on_logits,
                                 .last_rows = window},
                                out);
    ops::pool(exec, pool, out, window);
    ops::map(exec, out, weighed{lambda, redundant.rows});
  }

  friend bool operator==(r_kv const&, r_kv const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
