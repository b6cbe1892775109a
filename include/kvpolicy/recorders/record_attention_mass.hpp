// SPDX-License-Identifier: Apache-2.0
// Recorder: sums the attention that each entry receives over all forwards.
#pragma once

#include <array>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/add_probabilities.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/scratch.hpp>

namespace KVPOLICY_NAMESPACE {

/// Adds up the attention that each entry receives from every new query row (H2O's accumulated score, Zhang et al. 2023,
/// arXiv:2306.14048). The sum is fp32 whatever the model's type, because in bf16 it would stop growing at 128. A new
/// entry starts with the mass of its own forward.
///
/// The attention is read from `attention_probabilities` if the engine gives them. Otherwise it is computed from `keys`
/// and `queries`. In a dual cache the softmax of a row runs over the window and the pages together, so there query rows
/// come with their `lse`.
struct record_attention_mass {
  reduction group = reduction::sum;  ///< how the query heads of a KV head are reduced
  /// Which sum comes first, that over rows or that over query heads. It matters to a maximum.
  reduction_order order = reduction_order::rows_then_group;

  using needs =
      kvpolicy::needs<any_signal_of<keys, attention_probabilities>, any_signal_of<queries, attention_probabilities>>;
  using provides = attention_mass;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t>;
  static constexpr bool of_entries = true;

  [[nodiscard]] static std::array<column, 1> columns(shape const&, int) {
    return {column{"attention_mass", column_extent::lane_entry, on_move::permute, sizeof(float)}};
  }

  [[nodiscard]] static attention_mass view(recorded_columns const& recorded) {
    return {recorded.table<float const>(0)};
  }

  /// Refuses query rows without their `lse`.
  void refuse_part(char const* call, [[maybe_unused]] auto const& in) const {
    using given = std::remove_cvref_t<decltype(in)>;
    bool has_probabilities = false;
    if constexpr (kvpolicy::provides<given, attention_probabilities>) {
      has_probabilities = in.template find<attention_probabilities>() != nullptr;
    }
    if constexpr (kvpolicy::provides<given, queries>) {
      auto const* const rows = in.template find<queries>();
      expects(has_probabilities || rows == nullptr || rows->rows == 0 || rows->lse.data != nullptr, call, "queries.lse",
              "null", "a row attends to the window and to the pages: give its log-sum-exp, or attention_probabilities");
    }
  }

  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    using given = std::remove_cvref_t<decltype(in)>;
    if constexpr (kvpolicy::provides<given, attention_probabilities>) {
      if (auto const* const probabilities = in.template find<attention_probabilities>(); probabilities != nullptr) {
        expects(order == reduction_order::rows_then_group || group != reduction::max || probabilities->rows <= 1,
                "observe", "attention_probabilities.rows", probabilities->rows,
                "the largest of each row is added up: give one row, or keys and queries");
        return ops::add_probabilities(exec, in.lanes, *probabilities, group, recorded.table<float>(0));
      }
    }
    if constexpr (kvpolicy::provides<given, keys> && kvpolicy::provides<given, queries>) {
      ops::compute_attention_mass(exec, in.template get<keys>(), in.template get<queries>(),
                                  {.rows = reduction::sum, .group = group, .order = order, .accumulate = true},
                                  score_view{in.lanes, granularity::lane, recorded.table<float>(0)});
    }
  }

  friend bool operator==(record_attention_mass const&, record_attention_mass const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
