// SPDX-License-Identifier: Apache-2.0
// SnapKV scores entries by the pooled attention of the last query rows.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/pool.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/recorders/query_ring.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by the attention that the last `window` query rows pay to it, pooled over its neighbours (Li et
/// al. 2024, arXiv:2404.14469).
///
///     p    = softmax(q k / sqrt(D)) over all keys, causal inside the window      q: the last `window` rows
///     S_j  = sum over rows, then mean over the group's query heads               (j before the window)
///     S'   = pool(S) over the entries before the window
///
/// The entries of the window are forced. It differs from the released code in three ways: each KV head has one keep set
/// (the code expands the cache to query heads), all sums are fp32, and the kept entries stay in ascending order.
struct snapkv {
  int window = 32;  ///< w, the number of last query rows that score; their entries are kept
  pooling pool = max_pool{7};
  reduction rows = reduction::sum;
  reduction group = reduction::mean;

  static constexpr auto name = "snapkv";
  static constexpr auto fields() {
    return make_fields(field{"window", &snapkv::window}, field{"pool", &snapkv::pool}, field{"rows", &snapkv::rows},
                       field{"group", &snapkv::group});
  }
  using needs = kvpolicy::needs<keys, recent_queries>;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t, ops::pool_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr phase when = phase::prefill;

  void check(char const* call) const {
    expects(window >= 1, call, "snapkv.window", window, "at least one row observes");
    expects(pool.width >= 1 && pool.width % 2 == 1, call, "snapkv.pool", pool.width, "a pool has an odd width");
    expects(group != reduction::last, call, "snapkv.group", "last", "query heads have no order");
  }
  [[nodiscard]] constexpr recent forces() const { return {window}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{query_ring{window}}; }

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::compute_attention_mass(exec, in.template get<keys>(), in.template get<recent_queries>(),
                                {.rows = rows, .group = group, .last_rows = window}, out);
    ops::pool(exec, pool, out, window);
  }

  friend bool operator==(snapkv const&, snapkv const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
