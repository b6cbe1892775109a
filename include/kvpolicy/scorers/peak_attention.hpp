// SPDX-License-Identifier: Apache-2.0
// MPCache scores the entries of a prompt by the most attention of any of its last rows.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/forced.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by the most attention that any row of the last part of a prompt pays to it, on average over all
/// query heads of the layer (MPCache, Zeng et al. 2025, arXiv:2501.06807: what it drops once, after the prompt).
///
///     R   = max(1, floor(rows N))             the last rows, whose entries are forced; `long_rows` where N > `long`
///     s_j = max over these rows of the mean over all query heads of the layer of p_j
///     p   = softmax(q k / sqrt(D)), causal
///
/// It is for the pick `at_least`, without a budget. The released code has no scale and no causal mask in the last rows,
/// so its thresholds are of other numbers.
struct peak_attention {
  double rows = 0.2;       ///< the part of the entries
  double long_rows = 0.1;  ///< the part in a lane of more than `longer` entries
  int longer = 24000;

  static constexpr auto name = "peak_attention";
  static constexpr auto fields() {
    return make_fields(field{"rows", &peak_attention::rows}, field{"long_rows", &peak_attention::long_rows},
                       field{"long", &peak_attention::longer});
  }
  using needs = kvpolicy::needs<keys, queries>;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t>;
  static constexpr granularity decides = granularity::layer;
  static constexpr phase when = phase::prefill;
  static constexpr bool prompts_only = true;

  void check(char const* call) const {
    expects(rows >= 0 && rows <= 1, call, "peak_attention.rows", rows, "a part of the entries, 0 to 1");
    expects(long_rows >= 0 && long_rows <= 1, call, "peak_attention.long_rows", long_rows,
            "a part of the entries, 0 to 1");
    expects(longer >= 0, call, "peak_attention.long", longer, "a count cannot be negative");
  }
  [[nodiscard]] constexpr last_part forces() const { return {rows, long_rows, longer}; }
  /// The mean over the heads of a rank is not that over all heads.
  [[nodiscard]] static constexpr bool safe_across_ranks() { return false; }

  void score(auto& exec, auto const& in, score_view const& out) const {
    bool const one_row = rows == 0 && long_rows == 0;  // a part of 0 is one row
    ops::compute_attention_mass(exec, in.template get<keys>(), in.template get<queries>(),
                                {.rows = reduction::max,
                                 .group = reduction::mean,
                                 .order = reduction_order::all_heads_then_rows,
                                 .lanes = reduction::mean,
                                 .last_rows = one_row ? 1 : 0,
                                 .last_part = rows,
                                 .long_part = long_rows,
                                 .long_from = longer},
                                out);
  }

  friend bool operator==(peak_attention const&, peak_attention const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
