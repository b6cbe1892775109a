// SPDX-License-Identifier: Apache-2.0
// Scores entries by the attention of the last query rows, and forces none.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/recorders/query_ring.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by the attention that the last `window` query rows pay to it. It is `snapkv` without a pool and
/// without forced entries, so that it also scores the newest entries. Neural Garbage Collection scores blocks so.
///
///     s_j = mean over rows of softmax(q k / sqrt(D))_j, reduced over the group's query heads
///
/// The softmax is over all keys; a row that is older than an entry gives it 0.
struct window_attention {
  int window = 5;
  reduction group = reduction::mean;

  static constexpr auto name = "window_attention";
  static constexpr auto fields() {
    return make_fields(field{"window", &window_attention::window}, field{"group", &window_attention::group});
  }
  using needs = kvpolicy::needs<keys, recent_queries>;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t>;
  static constexpr granularity decides = granularity::lane;

  void check(char const* call) const {
    expects(window >= 1, call, "window_attention.window", window, "at least one row observes");
    expects(group != reduction::last, call, "window_attention.group", "last", "query heads have no order");
  }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{query_ring{window}}; }

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::compute_attention_mass(exec, in.template get<keys>(), in.template get<recent_queries>(),
                                {.rows = reduction::mean, .group = group, .last_rows = window}, out);
  }

  friend bool operator==(window_attention const&, window_attention const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
