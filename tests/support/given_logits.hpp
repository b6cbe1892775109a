// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reference/attention.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

/// A scale, a cap and sinks of a model, as the library and as the reference are told of them. The memory of the sinks
/// has a gap after each layer.
class given_logits {
 public:
  /// Any of the three may be absent; a sink is now and then -inf.
  given_logits(dice& random, kv::shape const& model, bool scale, bool cap, bool sinks) : model_(model) {
    if (scale) {  // 0.4 to 0.9 of the usual one: a split bf16 row has 16 bits, and no logit gets larger than it is
                  // elsewhere
      options_.scale = static_cast<float>((0.4 + std::abs(random.real(0.5))) / std::sqrt(1.0 * model.head_dim));
    }
    if (cap) options_.soft_cap = static_cast<float>(0.4 + std::abs(random.real(3)));
    if (!sinks) return;
    for (int i = 0; i < model.layers * stride(); ++i) {
      bool const none = random.chance(10);
      sinks_.push_back(none ? -std::numeric_limits<float>::infinity() : static_cast<float>(random.real(4)));
    }
    options_.sinks = {sinks_.data(), stride()};
  }
  given_logits(given_logits const&) = delete;
  given_logits& operator=(given_logits const&) = delete;

  [[nodiscard]] kv::logit_options const& options() const { return options_; }
  [[nodiscard]] std::vector<float>& sinks() { return sinks_; }
  [[nodiscard]] kv::keys keys_of(kv::cache from) const {
    from.logits = options_;
    return kv::keys_of(from);
  }
  /// Tells the reference's lane.
  void tell(kv::lane this_lane, reference::lane_attention& lane) const {
    lane.scale = options_.scale.has_value() ? static_cast<double>(*options_.scale) : 0;
    lane.soft_cap = static_cast<double>(options_.soft_cap);
    for (int h = 0; h < model_.group() && !sinks_.empty(); ++h) {
      int const at = this_lane.layer * stride() + this_lane.head * model_.group() + h;
      lane.sinks.push_back(static_cast<double>(sinks_[as_size(at)]));
    }
  }

 private:
  [[nodiscard]] int stride() const { return model_.query_heads + 3; }

  kv::shape model_;
  kv::logit_options options_{};
  std::vector<float> sinks_;
};

}  // namespace kvpolicy_test
