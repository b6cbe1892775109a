// SPDX-License-Identifier: Apache-2.0
// PyramidInfer scores entries by the attention of the last part of a prompt.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/parts/forced.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by the attention that the last part of the prompt's query rows pays to it, of which later rows
/// count more (PyramidInfer, Yang et al. 2024, arXiv:2405.12532, section 3.2).
///
///     R   = max(1, floor(rows N))                   the last rows, whose entries are forced
///     s_j = mean over all query heads of the layer and over rows r of (1 + (ramp - 1) r / (R - 1)) p_rj
///     p   = softmax(q k / sqrt(D)), causal          a single row counts 1
///
/// The rows are those of one forward: with `queries` of the last chunk of a prompt, no more rows than it has score.
struct late_attention {
  double rows = 0.2;  ///< the part of the entries
  float ramp = 1.2f;  ///< what the last row counts; the first one of the part counts 1

  static constexpr auto name = "late_attention";
  static constexpr auto fields() {
    return make_fields(field{"rows", &late_attention::rows}, field{"ramp", &late_attention::ramp});
  }
  using needs = kvpolicy::needs<keys, queries>;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t>;
  static constexpr granularity decides = granularity::layer;
  static constexpr phase when = phase::prefill;
  static constexpr bool prompts_only = true;

  void check(char const* call) const {
    expects(rows >= 0 && rows <= 1, call, "late_attention.rows", rows, "a part of the entries, 0 to 1");
    expects(ramp >= 0 && ramp - ramp == 0, call, "late_attention.ramp", ramp, "the weight of a row, 0 or more");
  }
  [[nodiscard]] constexpr last_part forces() const { return {rows}; }

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::compute_attention_mass(exec, in.template get<keys>(), in.template get<queries>(),
                                {.rows = reduction::mean,
                                 .group = reduction::mean,
                                 .lanes = reduction::mean,
                                 .last_rows = rows > 0 ? 0 : 1,  // a part of 0 is one row
                                 .weight = {.by = weight_of_row::ramp, .last = ramp},
                                 .last_part = rows},
                                out);
  }

  friend bool operator==(late_attention const&, late_attention const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
