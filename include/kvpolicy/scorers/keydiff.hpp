// SPDX-License-Identifier: Apache-2.0
// KeyDiff keeps the keys that point where few others do.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/logits.hpp>
#include <kvpolicy/ops/mean_row.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

// example-begin scorer
/// Scores each entry by how little its key resembles the others (Park et al. 2025, arXiv:2504.15364).
///
///     a   = mean of k_j / ||k_j|| over the entries of the lane
///     s_j = -cos(k_j, a)
///
/// A key or an anchor of zeros has no direction, and its cosine is 0. A decision reads the keys twice, and the plan has
/// D floats more for each lane.
struct keydiff {
  static constexpr auto name = "keydiff";
  static constexpr auto fields() { return make_fields(); }
  using needs = kvpolicy::needs<keys>;
  using verbs = kvpolicy::verbs<ops::mean_row_t, ops::logits_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool any_order = true;

  [[nodiscard]] static constexpr int spare_rows(lanes const& batch, shape const& model) {
    return rows_of_scores(batch, std::int64_t{batch.size()} * model.head_dim);
  }

  /// -cos, of 1 / ||k|| and the product of k and the unit anchor.
  struct negated_cosine {
    KVPOLICY_HD float operator()(float inverse_norm, float product) const { return -inverse_norm * product; }
  };
  void score(auto& exec, auto const& in, score_view const& out) const {
    keys const& k = in.template get<keys>();
    int const dims = k.rows.channels;
    by_lane<float> const anchor = contiguous_scores(out.lanes, granularity::lane, out.spare, dims).rows;
    ops::mean_row(exec, out.lanes, k, {.unit = true, .unit_mean = true, .inverse_norms = out.rows}, anchor);
    ops::logits(exec, k, one_row_a_lane(anchor, dims, out.lanes), {.scale = 1.0f}, negated_cosine{}, out);
  }

  friend bool operator==(keydiff const&, keydiff const&) = default;
};
// example-end scorer

}  // namespace KVPOLICY_NAMESPACE
