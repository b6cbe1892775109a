// SPDX-License-Identifier: Apache-2.0
// DefensiveKV scores entries by the most attention that any row may pay to them, and by their values.
#pragma once

#include <array>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/first_places.hpp>
#include <kvpolicy/ops/count_cover.hpp>
#include <kvpolicy/ops/pooled_attention.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/ops/row_stats.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/budget.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/recorders/query_ring.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/projected_norms.hpp>
#include <kvpolicy/scorers/put_first_rest.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// What reduces the part of the attention that the entries have which are put first: the mass of the window, or, as in
/// the released code, that of as many entries before it.
enum class cover_bias { window, release };
[[nodiscard]] constexpr std::array<char const*, 2> names(cover_bias) { return {"window", "release"}; }

/// By what the norm of an entry's value is divided: the sum over the heads of the layer, that over the entries before
/// the window, or nothing.
enum class norm_axis { heads, tokens, none };
[[nodiscard]] constexpr std::array<char const*, 3> names(norm_axis) { return {"heads", "tokens", "none"}; }

/// Scores each entry by the most attention that any of the last `window` query rows may pay to it or to its neighbours
/// (Feng et al. 2025, arXiv:2510.13334). What one row reads may be read again, whatever the others say, and no entry is
/// worthless for certain: the mean is a floor.
///
///     p   = softmax(q k / sqrt(D)) over all keys, causal inside the window      q: the last `window` rows
///     m_j = max over rows and the group's query heads of pool(p)_j, with the mass that p has before the window
///     s_j = max(m_j, mean of m) n_j                                             (j before the window)
///     n_j = || W_o v_j ||_1 over the sum of that over the layer's heads, over the lane (`tokens`), or as it is
///
/// Entries that have most of the mean attention a_j are put first: with a over its sum before the window, the best by a
/// whose sum is below `cover` - b, where b is the mass of the window, on average over the layer's heads.
///
/// The entries of the window are forced. It reads `value_norms` or else `values` and `output_projection`. The plan has
/// 2 N + 4 floats more for each lane. No stage may be around it. `Method` has the name, and says which lanes share the
/// budget of a spec.
template <class Method>
struct defended_attention {
  int window = 32;  ///< w, the number of last query rows that score; their entries are kept
  pooling pool = avg_pool{5};
  double cover = 0.9;
  cover_bias bias = cover_bias::window;
  norm_axis axis = norm_axis::heads;

  static constexpr auto name = Method::name;
  static constexpr auto fields() {
    return make_fields(field{"window", &defended_attention::window}, field{"pool", &defended_attention::pool},
                       field{"cover", &defended_attention::cover}, field{"bias", &defended_attention::bias},
                       field{"norm_axis", &defended_attention::axis});
  }
  using needs = kvpolicy::needs<keys, recent_queries, norms_or_values, norms_or_projection>;
  using verbs = kvpolicy::verbs<ops::pooled_attention_t, ops::projected_norm_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr budget_scope pools = Method::pools;
  static constexpr phase when = phase::prefill;
  static constexpr bool prompts_only = true;
  static constexpr bool rest_in_plan = true;

  void check(char const* call) const {
    auto const of = [](char const* member) { return [member] { return std::string(name) + member; }; };
    expects(window >= 1, call, of(".window"), window, "at least one row observes");
    expects(pool.width >= 1 && pool.width % 2 == 1, call, of(".pool"), pool.width, "a pool has an odd width");
    expects(cover >= 0 && cover <= 1, call, of(".cover"), cover, "a part of the attention, 0 to 1");
  }
  [[nodiscard]] constexpr recent forces() const { return {window}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{query_ring{window}}; }
  [[nodiscard]] static constexpr bool safe_across_ranks() { return false; }
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch, shape const&) {
    return 2 * batch.size() + rows_of_scores(batch, std::int64_t{numbers} * batch.size());
  }
  [[nodiscard]] static constexpr first_places places() { return {.part = 1}; }
  [[nodiscard]] static put_first_rest rest_scores(auto const&, score_view const& scores) {
    return {.by = put_first_rest::kind::rows, .rows = spare(scores, 0).rows, .counts = number(scores, counts)};
  }

  /// True for the entries [count - reach, count - behind) of a lane.
  struct before_end {
    std::int64_t reach, behind;
    KVPOLICY_HD bool operator()(entry at) const {
      return at.ordinal >= at.count - reach && at.ordinal < at.count - behind;
    }
  };
  /// The mean attention, in sum, of the entries that are put first.
  struct limit {
    by_lane<float> of_lane;
    int heads;
    double cover;
    KVPOLICY_HD double operator()(lane one) const {
      double taken = 0;
      for (int h = 0; h < heads; ++h)
        taken += static_cast<double>(of_lane.row({one.sequence, one.layer, h})[bias_mass]);
      return (cover - taken / heads) * static_cast<double>(of_lane.row(one)[mass]);
    }
  };
  /// The score of an entry that is not put first, by the highest of its pools.
  struct defended {
    by_lane<float> of_lane, norms;
    lanes batch;
    norm_axis axis;
    KVPOLICY_HD float operator()(float high, entry at) const {
      float const* const known = of_lane.row(at.lane);
      float const norm = norms.row(at.lane)[at.ordinal];
      double by = axis == norm_axis::tokens ? static_cast<double>(known[mass]) : 1;
      if (axis == norm_axis::heads) {
        by = 0;
        for (int h = 0; h < batch.heads; ++h) {
          lane const one{at.lane.sequence, at.lane.layer, h};
          if (at.ordinal < batch.committed(one)) by += static_cast<double>(norms.row(one)[at.ordinal]);
        }
      }
      float const least = high < known[floor] ? known[floor] : high;
      return norm == 0 && by == 0 ? 0 : static_cast<float>(static_cast<double>(least) * static_cast<double>(norm) / by);
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    score_view const rest = spare(out, 0), norms = spare(out, 1);
    before_end const all{std::int64_t{1} << 40, window};
    ops::pooled_attention(exec, in.template get<keys>(), in.template get<recent_queries>(), {pool, window, window},
                          out.rows, rest);
    bool const by_window = bias == cover_bias::window;
    before_end const taken{std::int64_t{by_window ? 1 : 2} * window, by_window ? 0 : window};
    ops::row_stats(exec, out, taken, statistic::sum, number(out, bias_mass));
    ops::row_stats(exec, out, all, statistic::sum, number(out, mass));
    ops::count_cover(exec, out, all, limit{number(out, 0), out.lanes.heads, cover}, number(out, counts));
    ops::row_stats(exec, rest, all, statistic::mean, number(out, floor));
    detail::apply_projected_norms(exec, in, {norm_of_row::l1}, replaced{}, norms);
    if (axis == norm_axis::tokens) ops::row_stats(exec, norms, all, statistic::sum, number(out, mass));
    ops::map(exec, rest, defended{number(out, 0), norms.rows, out.lanes, axis});
  }

  friend bool operator==(defended_attention const&, defended_attention const&) = default;

 private:
  /// The numbers of each lane, in the plan's first spare floats.
  static constexpr int bias_mass = 0, mass = 1, floor = 2, counts = 3, numbers = 4;

  static by_lane<float> number(score_view const& scores, int which) {
    by_lane<float> made = numbers_of_lanes(scores, numbers);
    made.data += which;
    return made;
  }
  /// A row of scores for each lane, behind them.
  static score_view spare(score_view const& scores, int which) {
    std::int64_t const lanes = scores.lanes.size(), capacity = scores.lanes.capacity;
    return contiguous_scores(scores.lanes, granularity::lane, scores.spare + lanes * (numbers + which * capacity),
                             capacity);
  }
};

namespace detail {
struct defensive_kv_method {
  static constexpr auto name = "defensive_kv";
  static constexpr budget_scope pools = budget_scope::layer;
};
struct layer_defensive_kv_method {
  static constexpr auto name = "layer_defensive_kv";
  static constexpr budget_scope pools = budget_scope::sequence;
};
}  // namespace detail

/// DefensiveKV: the lanes of a layer share the budget.
using defensive_kv = defended_attention<detail::defensive_kv_method>;

/// Layer-DefensiveKV: all lanes share it.
using layer_defensive_kv = defended_attention<detail::layer_defensive_kv_method>;

}  // namespace KVPOLICY_NAMESPACE
