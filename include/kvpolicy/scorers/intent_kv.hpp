// SPDX-License-Identifier: Apache-2.0
// IntentKV scores tokens by the queries of the session's turns, for all layers and heads at once.
#pragma once

#include <array>
#include <cmath>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/all_reduce.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/residual.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/forced.hpp>
#include <kvpolicy/parts/trigger.hpp>
#include <kvpolicy/recorders/record_key_sums.hpp>
#include <kvpolicy/recorders/record_query_memory.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// The queries that score: those of the last turn, the memory of all turns, or that memory with a trained residual.
enum class intent_mode { query, memory, learnable };

[[nodiscard]] constexpr std::array<char const*, 3> names(intent_mode) { return {"query", "memory", "learnable"}; }

/// Scores each token by the attention that the session's query memory pays to it (arXiv:2606.09916, sections 3.1 to
/// 3.3; no code is released).
///
///     M      = unit(e^-lambda M + mean of the span's queries)            for each layer and query head
///     a_j    = softmax(M k_j / sqrt(D)) over the live candidates
///     rule_j = sum of a_j over layers and heads                          the sum over all candidates is L Hq
///     s_j    = rule_j + alpha residual_j                                 only in mode `learnable`
///
/// It is meant for an agent whose turns share a prefix: decide once after each turn's prefill, and apply with
/// `dead_slot`. All layers and heads decide together. The protected prefix and the actionable span (`turn_queries`) are
/// forced, all of them even if they exceed the budget. The rule and the features of the residual are reduced over
/// tensor-parallel ranks before the residual head reads them.
///
/// Memory: L Hq D floats for each session. Mode `learnable` adds to the state a sum of keys for each token (see
/// `record_key_sums`), and to the plan D floats for each token of the bound and the scratch of the residual head.
struct intent_kv {
  intent_mode mode = intent_mode::memory;
  float lambda = 0.5f;              ///< how fast the memory of a turn decays
  int prefix = 0;                   ///< first positions that are kept
  int tail = 32;                    ///< how many of the last rows replace a span that is not known
  bool normalize_encoding = false;  ///< scale a turn's mean to a unit vector before adding it
  int min_growth = 0;               ///< decide when at least this many entries exceed the budget; 0: when any does
  bool cross_attention = true;      ///< false leaves the cross attention of the residual out
  residual_head residual{};         ///< the trained weights; a spec cannot set them

  static constexpr auto name = "intent_kv";
  static constexpr auto fields() {
    return make_fields(
        field{"mode", &intent_kv::mode}, field{"lambda", &intent_kv::lambda}, field{"prefix", &intent_kv::prefix},
        field{"tail", &intent_kv::tail}, field{"normalize_encoding", &intent_kv::normalize_encoding},
        field{"min_growth", &intent_kv::min_growth}, field{"cross_attention", &intent_kv::cross_attention});
  }
  using needs = kvpolicy::needs<keys, turn_queries>;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t, ops::feature_sums_t, ops::residual_t>;
  static constexpr granularity decides = granularity::sequence;
  static constexpr phase when = phase::prefill;
  static constexpr bool ranks_candidates = true;

  void check(char const* call) const {
    expects(std::isfinite(lambda) && lambda >= 0, call, "intent_kv.lambda", lambda, "a memory fades, it does not grow");
    expects(prefix >= 0, call, "intent_kv.prefix", prefix, "a count cannot be negative");
    expects(tail >= 1, call, "intent_kv.tail", tail, "at least one row stands for the span");
    expects(min_growth >= 0, call, "intent_kv.min_growth", min_growth, "a count cannot be negative");
    expects(mode != intent_mode::learnable || residual.there(), call, "intent_kv.residual", "none",
            "mode learnable needs the trained weights");
  }
  void check(char const* call, shape const& model) const {
    check(call);
    if (mode == intent_mode::learnable) residual.check(call, model);
  }
  void refuse(auto& exec, auto const& in) const {
    ops::refuse_spans(exec, in.lanes, in.template get<turn_queries>(), "decide");
  }
  [[nodiscard]] static constexpr bool safe_across_ranks() { return true; }
  /// The prefix and the actionable span.
  [[nodiscard]] prefix_and_span forces(auto const& in) const { return {prefix, tail, in.template get<turn_queries>()}; }
  [[nodiscard]] constexpr over_budget triggers() const { return {min_growth > 0 ? min_growth - 1 : 0}; }
  [[nodiscard]] auto recorders() const {
    float const keep = mode == intent_mode::query ? 0.0f : static_cast<float>(std::exp(-static_cast<double>(lambda)));
    return std::tuple{record_query_memory{keep, normalize_encoding, tail},
                      record_key_sums{mode == intent_mode::learnable}};
  }
  [[nodiscard]] constexpr int spare_rows(lanes const& batch, shape const& model) const {
    if (mode != intent_mode::learnable) return 0;
    std::int64_t const floats = token_features::scratch_floats(batch, model.head_dim) +
                                ops::residual_t::scratch_floats(residual, batch.capacity);
    return rows_of_scores(batch, floats);
  }

  void score(auto& exec, auto const& in, score_view const& out) const {
    auto const memory = in.template get<query_memory>();
    ops::compute_attention_mass(exec, in.template get<keys>(), memory,
                                {.domain = key_domain::candidates, .group = reduction::sum, .lanes = reduction::sum},
                                out);
    ops::all_reduce(exec, out);
    if (mode == intent_mode::learnable) add_residual(exec, in, memory, out);
  }

  friend bool operator==(intent_kv const&, intent_kv const&) = default;

 private:
  void add_residual(auto& exec, auto const& in, query_memory const& memory, score_view const& out) const {
    token_features const features{out.spare, residual.dims, out.lanes.capacity};
    std::int64_t const floats = token_features::scratch_floats(out.lanes, residual.dims);
    ops::feature_sums(exec, in.template get<keys>(), memory, in.template get<key_sums>(), out, features);
    ops::all_reduce(exec, features.data, static_cast<std::size_t>(floats));
    ops::residual(exec, features, in.template get<turn_queries>(), residual, residual_options{tail, cross_attention},
                  out, out.spare + floats);
  }
};

}  // namespace KVPOLICY_NAMESPACE
