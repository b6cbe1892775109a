// SPDX-License-Identifier: Apache-2.0
// KVzip keeps what the model reads when it repeats the prompt.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/ops/span_attention.hpp>
#include <kvpolicy/parts/budget.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/external_queries.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores entries by the attention that they get while the model repeats the prompt chunk by chunk (Kim et al. 2025,
/// arXiv:2505.23416). The scores depend on no question, so the cache serves any that comes later.
///
///     p   = softmax(q k / sqrt(D)) over the first `sinks` entries, those of the chunk, and what was repeated so far
///     s_j = max over the chunk's rows and the group's query heads of p
///
/// The engine runs the model over each chunk after a request to repeat it, and gives the queries and the keys of that
/// run: `external_queries` with `spans` that say which entries each row repeats, and the rows' own keys. An entry that
/// no row repeats scores 0. The first `sinks` are forced, and all lanes share one budget. Decide once, at the end of
/// the prefill. `frozen<kvzip>` with `freezing::highest` observes one chunk after another, so that the engine need not
/// hold the rows of all.
struct kvzip {
  int sinks = 4;
  bool plus = false;  ///< weights with the values' projected norms (KVzip+): not there yet

  static constexpr auto name = "kvzip";
  static constexpr auto fields() { return make_fields(field{"sinks", &kvzip::sinks}, field{"plus", &kvzip::plus}); }
  using needs = kvpolicy::needs<keys, external_queries>;
  using verbs = kvpolicy::verbs<ops::span_attention_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr budget_scope pools = budget_scope::sequence;
  static constexpr bool prompts_only = true;

  void check(char const* call) const {
    expects(sinks >= 0, call, "kvzip.sinks", sinks, "a count cannot be negative");
    expects(!plus, call, "kvzip.plus", "true", "weights by the norms of projected values are not there yet");
  }
  [[nodiscard]] constexpr kvpolicy::sinks forces() const { return {sinks}; }

  void score(auto& exec, auto const& in, score_view const& out) const {
    external_queries const& rows = in.template get<external_queries>();
    ops::span_attention(exec, in.template get<keys>(), rows, rows.spans, {.sinks = sinks}, out);
  }

  friend bool operator==(kvzip const&, kvzip const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
