// WG-KV: what a token's own key says about whether it will be read again.
#pragma once

#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/recorders/record_gate.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Write gates (arXiv:2512.17452, section 3): the score is g, a perceptron's answer to the keys before and after RoPE
/// (`ops::write_gates`), computed when the token was written.
///
///     g_j = sigmoid(W2 gelu(W1 [RMS(k_pre) w_pre | RMS(k_post) w_post] + b1) + b2)
struct write_gate {
  static constexpr auto name = "write_gate";
  static constexpr auto fields() { return std::tuple{}; }
  using needs = kvpolicy::needs<admission_gate>;
  static constexpr granularity decides = granularity::lane;

  /// The gate of an entry; one of 0 is kept as -0, and a score of 0 is +0.
  struct bound_policy {
    by_lane<float const> gate;
    KVPOLICY_HD float operator()(float, entry at) const { return gate.row(at.lane)[at.ordinal] + 0.0f; }
  };

  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_gate{}}; }

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::map(exec, out, bound_policy{in.template get<admission_gate>().gate});
  }

  friend bool operator==(write_gate const&, write_gate const&) = default;
};
static_assert(scorer<write_gate>);

}  // namespace KVPOLICY_NAMESPACE
