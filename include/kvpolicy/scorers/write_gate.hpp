// SPDX-License-Identifier: Apache-2.0
// WG-KV scores a token by its write gate, which predicts from its key whether it will be read again.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/recorders/record_gate.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by its write gate g (arXiv:2512.17452, section 3). A small perceptron computes g from the key
/// before and after RoPE when the token is written (`ops::write_gates`).
///
///     g_j = sigmoid(W2 gelu(W1 [RMS(k_pre) w_pre | RMS(k_post) w_post] + b1) + b2)
struct write_gate {
  static constexpr auto name = "write_gate";
  static constexpr auto fields() { return make_fields(); }
  using needs = kvpolicy::needs<admission_gate>;
  static constexpr granularity decides = granularity::lane;

  /// The score of an entry is its gate. The column stores a gate of 0 as -0 to tell it from an empty one; adding 0
  /// makes such a score +0.
  struct copy_gate {
    by_lane<float const> gate;
    KVPOLICY_HD float operator()(float, entry at) const { return gate.row(at.lane)[at.ordinal] + 0.0f; }
  };

  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_gate{}}; }

  [[nodiscard]] copy_gate entry_scores(auto const& in) const { return {in.template get<admission_gate>().gate}; }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(write_gate const&, write_gate const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
