// SPDX-License-Identifier: Apache-2.0
// WG-KV's eviction of admitted entries: it scores them by the attention of the last queries.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/pool.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each admitted entry by the attention that it receives from the last query rows (arXiv:2512.17452,
/// appendix K.1, as in the released code).
///
///     p    = softmax(q k / sqrt(D)) over the lane's entries                    q: the last `window` rows
///     S_j  = sum over rows of the maximum over the group's query heads
///     S'   = pool(S)
///
/// It is a scorer for the pages of a dual cache. The softmax leaves the window's keys out, and every entry is older
/// than every row, so each row sees all entries. The engine keeps the query rows.
struct admitted_attention {
  int window = 256;
  pooling pool = max_pool{5};

  static constexpr auto name = "admitted_attention";
  static constexpr auto fields() {
    return make_fields(field{"window", &admitted_attention::window}, field{"pool", &admitted_attention::pool});
  }
  using needs = kvpolicy::needs<keys, recent_queries>;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t, ops::pool_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool rows_see_every_entry = true;

  void check(char const* call) const {
    expects(window >= 1, call, "admitted_attention.window", window, "at least one row observes");
    expects(pool.width >= 1 && pool.width % 2 == 1, call, "admitted_attention.pool", pool.width,
            "a pool has an odd width");
  }

  void score(auto& exec, auto const& in, score_view const& out) const {
    recent_queries rows = in.template get<recent_queries>();
    rows.position = {};  // the rows belong to the window, and every entry is older than the window
    rows.lse = {};       // the engine's log-sum-exp includes the keys of the window
    ops::compute_attention_mass(exec, in.template get<keys>(), rows,
                                {.rows = reduction::sum,
                                 .group = reduction::max,
                                 .order = reduction_order::group_then_rows,
                                 .last_rows = window},
                                out);
    ops::pool(exec, pool, out, 0);
  }

  friend bool operator==(admitted_attention const&, admitted_attention const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
