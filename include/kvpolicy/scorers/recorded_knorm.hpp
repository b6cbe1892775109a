// SPDX-License-Identifier: Apache-2.0
// Knorm for decode loops: the norm of a key is computed once, when its token is observed.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/recorders/record_key_norms.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores as `knorm`, bit for bit, by norms that were recorded: observe every forward before deciding. `knorm` needs no
/// `observe`, and reads every key at every decision.
struct recorded_knorm {
  static constexpr auto name = "recorded_knorm";
  static constexpr auto fields() { return make_fields(); }
  using needs = kvpolicy::needs<key_norms>;
  static constexpr granularity decides = granularity::lane;

  /// The score of an entry is its negated norm.
  struct copy_norm {
    by_lane<float const> negated;
    [[nodiscard]] KVPOLICY_HD float const* row(lane this_lane) const { return negated.row(this_lane); }
    KVPOLICY_HD float operator()(float, entry at) const { return row(at.lane)[at.ordinal]; }
  };

  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_key_norms{}}; }
  [[nodiscard]] copy_norm entry_scores(auto const& in) const { return {in.template get<key_norms>().negated}; }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(recorded_knorm const&, recorded_knorm const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
