// SPDX-License-Identifier: Apache-2.0
// SimLayerKV: finds the layers that attend to little but the first and the last entries.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/row_stats.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/recorders/query_ring.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores 0 the entries that a lazy layer can do without, and 1 all others (Zhang et al. 2024, arXiv:2410.13846). It is
/// for the pick `at_least(0.5)`, without a budget.
///
///     a    = mean over all query heads and the last rows of softmax(q k / sqrt(D)), for the entries before these rows'
///     lazy : sum of a over the first `initial` and the last `recent` of these entries > threshold
///
/// A lazy layer keeps its first `initial` and its last `recent - last` entries. A layer is not lazy if it has at most
/// initial + recent + last entries, or if nothing was observed. The plan has a float more for each layer. kvpress's
/// SimLayerKVPress is the same.
struct lazy_layers {
  float threshold = 1;  ///< of attention; at 1 no layer is lazy
  int initial = 4;
  int recent = 1024;
  int last = 1;  ///< the number of last query rows

  static constexpr auto name = "lazy_layers";
  static constexpr auto fields() {
    return make_fields(field{"threshold", &lazy_layers::threshold}, field{"initial", &lazy_layers::initial},
                       field{"recent", &lazy_layers::recent}, field{"last", &lazy_layers::last});
  }
  using needs = kvpolicy::needs<keys, recent_queries>;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t>;
  static constexpr granularity decides = granularity::layer;
  static constexpr bool prompts_only = true;

  void check(char const* call) const {
    expects(threshold >= 0, call, "lazy_layers.threshold", threshold, "a part of attention, 0 or more");
    expects(initial >= 0, call, "lazy_layers.initial", initial, "a count cannot be negative");
    expects(recent >= 0, call, "lazy_layers.recent", recent, "a count cannot be negative");
    expects(last >= 1, call, "lazy_layers.last", last, "at least one row observes");
  }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{query_ring{last}}; }
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch, shape const&) {
    return rows_of_scores(batch, batch.size());
  }

  /// The entries whose attention makes a layer lazy.
  struct at_ends {
    int initial, recent, last;
    KVPOLICY_HD bool operator()(entry at) const {
      std::int64_t const before = std::int64_t{at.count} - last;
      return at.ordinal < before && (at.ordinal < initial || at.ordinal >= before - recent);
    }
  };
  /// 1 for an entry that stays.
  struct stays {
    float threshold;
    at_ends ends;
    by_lane<float> attention;
    KVPOLICY_HD float operator()(float, entry at) const {
      bool const is_long = at.count > std::int64_t{ends.initial} + ends.recent + ends.last;
      if (threshold >= 1 || !is_long || !(*attention.row(at.lane) > threshold)) return 1;
      return at.ordinal < ends.initial || at.ordinal >= std::int64_t{at.count} + ends.last - ends.recent ? 1.0f : 0.0f;
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    by_lane<float> const attention = contiguous_scores(out.lanes, out.decides, out.spare, 1).rows;
    at_ends const ends{initial, recent, last};
    ops::compute_attention_mass(
        exec, in.template get<keys>(), in.template get<recent_queries>(),
        {.rows = reduction::mean, .group = reduction::mean, .lanes = reduction::mean, .last_rows = last}, out);
    ops::row_stats(exec, out, ends, statistic::sum, attention);
    ops::map(exec, out, stays{threshold, ends, attention});
  }

  friend bool operator==(lazy_layers const&, lazy_layers const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
