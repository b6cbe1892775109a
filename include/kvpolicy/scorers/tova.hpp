// SPDX-License-Identifier: Apache-2.0
// TOVA scores tokens by the attention of the last query row, with one keep set for a whole layer.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/recorders/query_ring.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each token by the attention that the last query row pays to it (Oren et al. 2024, arXiv:2401.06104). The
/// paper drops the token with the lowest score after every forward.
///
///     s_j = mean over all query heads of softmax(q k / sqrt(D))_j      q: the last row, which also sees itself
///
/// The last token can be dropped, as in the authors' code. kvpress forces it (`force_last`).
struct tova {
  bool force_last = false;

  static constexpr auto name = "tova";
  static constexpr auto fields() { return make_fields(field{"force_last", &tova::force_last}); }
  using needs = kvpolicy::needs<keys, recent_queries>;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t>;
  static constexpr granularity decides = granularity::layer;
  static constexpr bool any_order = true;  // the last row sees every entry

  [[nodiscard]] constexpr recent forces() const { return {force_last ? 1 : 0}; }
  [[nodiscard]] static constexpr auto recorders() { return std::tuple{query_ring{1}}; }

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::compute_attention_mass(exec, in.template get<keys>(), in.template get<recent_queries>(),
                                {.group = reduction::mean, .lanes = reduction::mean, .last_rows = 1}, out);
  }

  friend bool operator==(tova const&, tova const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
