// SPDX-License-Identifier: Apache-2.0
// FINCH scores entries by the attention of the last rows, of which each counts by how many entries it sees.
#pragma once

#include <array>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/recorders/query_ring.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// How many entries a row of a window counts for: those that it sees, or one less, as in kvpress 0.5.5.
enum class seen_entries { exact, kvpress };

[[nodiscard]] constexpr std::array<char const*, 2> names(seen_entries) { return {"exact", "kvpress"}; }

/// Scores each entry by the attention that the last `window` query rows, those of the question, pay to it (Corallo and
/// Papotti 2024, arXiv:2408.00167, section 3.2). A row that sees more entries gives each of them less, so rows are
/// weighted by how many they see.
///
///     p   = softmax(q k / sqrt(D)) over all keys, causal inside the window        q: the last `window` rows
///     s_j = mean over rows r of n_r p_rj, then over the group's query heads       n_r: the entries that row r sees
///
/// The entries of the window are forced. The paper's prompt comes in chunks; here it is one.
struct finch {
  int window = 32;  ///< the number of last query rows that score; their entries are kept
  seen_entries counts = seen_entries::exact;
  reduction group = reduction::mean;

  static constexpr auto name = "finch";
  static constexpr auto fields() {
    return make_fields(field{"window", &finch::window}, field{"counts", &finch::counts}, field{"group", &finch::group});
  }
  using needs = kvpolicy::needs<keys, recent_queries>;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr phase when = phase::prefill;
  static constexpr bool prompts_only = true;

  void check(char const* call) const {
    expects(window >= 1, call, "finch.window", window, "at least one row observes");
    expects(group != reduction::last, call, "finch.group", "last", "query heads have no order");
  }
  [[nodiscard]] constexpr recent forces() const { return {window}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{query_ring{window}}; }

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::compute_attention_mass(exec, in.template get<keys>(), in.template get<recent_queries>(),
                                {.rows = reduction::mean,
                                 .group = group,
                                 .last_rows = window,
                                 .weight = {weight_of_row::visible, counts == seen_entries::kvpress ? 1 : 0}},
                                out);
  }

  friend bool operator==(finch const&, finch const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
