// SPDX-License-Identifier: Apache-2.0
// The gates of WG-KV and TRIM-KV written out: what a token is worth, from its keys or its hidden row.
#pragma once

#include "basics.hpp"
#include "intent_kv.hpp"

namespace kvpolicy_reference {

/// u / sqrt(mean(u^2) + 1e-6).
inline row rms_normed(row u) {
  double const scale = std::sqrt(dot(u, u) / static_cast<double>(u.size()) + 1e-6);
  for (double& x : u) x /= scale;
  return u;
}

inline row times(row a, row const& b) {
  require(a.size() == b.size(), "product of rows of different lengths");
  for (std::size_t d = 0; d < a.size(); ++d) a[d] *= b[d];
  return a;
}

inline double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }
inline double silu(double z) { return z * sigmoid(z); }

/// log(sigmoid(z)), without the sigmoid: that is 1 or 0 where its logarithm is neither 0 nor -inf.
inline double log_sigmoid(double z) {
  if (std::isnan(z)) return z;
  return (z < 0 ? z : 0.0) - std::log1p(std::exp(-std::fabs(z)));
}

/// WG-KV's gate of one lane. The norms' weights are the layer's, shared by its heads.
struct write_gate {
  row pre_norm, post_norm;  ///< [D]
  linear fc1;               ///< 2D -> E
  linear fc2;               ///< E -> 1

  /// x = [RMS(pre) pre_norm ; RMS(post) post_norm], g = sigmoid(fc2 gelu(fc1 x)), of one key before and after RoPE.
  [[nodiscard]] double operator()(row const& pre, row const& post) const {
    row hidden = fc1(joined(times(rms_normed(pre), pre_norm), times(rms_normed(post), post_norm)));
    for (double& x : hidden) x = gelu(x);
    return sigmoid(fc2(hidden).at(0));
  }
};

/// TRIM-KV's gate of one layer.
struct retention_gate {
  linear fc1;  ///< d -> E
  linear fc2;  ///< E -> KV heads

  /// log beta of each KV head: log(sigmoid(fc2 silu(fc1 x))), x the hidden row after the layer's input norm.
  [[nodiscard]] row operator()(row const& x) const {
    row hidden = fc1(x);
    for (double& y : hidden) y = silu(y);
    row z = fc2(hidden);
    for (double& y : z) y = log_sigmoid(y);
    return z;
  }
};

}  // namespace kvpolicy_reference
