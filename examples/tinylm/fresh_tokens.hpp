// SPDX-License-Identifier: Apache-2.0
// Tokens that the model has read and that are in no cache yet: their rows, and the outputs of gates.
#pragma once

#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <vector>

#include "model.hpp"
#include "timed.hpp"

namespace tinylm {

/// The weights of the gates that a policy may need. They are views, so their files must outlive them.
struct gate_weights {
  kv::write_gate_weights write{};
  kv::retention_gate_weights retention{};
};

/// Up to `capacity` tokens that were read and are in no cache yet: their rows of K and V [lane][token][D], their
/// positions, and the outputs of gates [lane][token], which are 0 for a missing gate.
class fresh_tokens {
 public:
  template <kv::executor Executor>
  fresh_tokens(Executor& exec, kv::shape const& model, int capacity, gate_weights const& gates)
      : model_(model), capacity_(capacity), gates_(gates) {
    auto const entries = static_cast<std::size_t>(model.layers * model.kv_heads) * static_cast<std::size_t>(capacity);
    k_.resize(entries * static_cast<std::size_t>(model.head_dim));
    v_.resize(k_.size());
    gate_.resize(entries);
    log_beta_.resize(entries);
    position_.resize(static_cast<std::size_t>(capacity));
    if (gates.write.there()) {
      gates.write.check("fresh_tokens", model);
      kv::ops::write_gates.reserve(exec, gates.write);
    }
    if (gates.retention.there()) {
      gates.retention.check("fresh_tokens", model);
      kv::ops::retention_gates.reserve(exec, gates.retention);
    }
  }

  /// Replaces the tokens by `tokens` new ones, at the positions from `position` on.
  void begin(int tokens, int position) {
    kv::expects(tokens <= capacity_, "fresh_tokens", "tokens", tokens,
                [&] { return "there is room for " + std::to_string(capacity_); });
    count_.front() = tokens;
    for (int i = 0; i < tokens; ++i) position_[static_cast<std::size_t>(i)] = position + i;
  }

  /// Computes the gates of a layer's rows.
  template <kv::executor Executor>
  void hear(Executor& exec, layer_rows const& rows) {
    kv::lanes const batch = lanes().layers_only(rows.layer, rows.layer + 1);
    if (gates_.write.there()) {
      timed(write_seconds_, [&] {
        kv::ops::write_gates(exec, batch, rows.keys_before, rows.keys_after, gates_.write, numbers(gate_));
      });
    }
    if (gates_.retention.there()) {
      timed(retention_seconds_,
            [&] { kv::ops::retention_gates(exec, batch, rows.normed, gates_.retention, numbers(log_beta_)); });
    }
  }
  /// The seconds that `hear` has spent in each gate so far.
  [[nodiscard]] double write_seconds() const { return write_seconds_; }
  [[nodiscard]] double retention_seconds() const { return retention_seconds_; }

  /// The outputs of the gates, as signals for the newest entries of `batch`.
  [[nodiscard]] kv::signals<kv::gate, kv::log_beta> signals(kv::lanes const& batch) const {
    kv::gate gates;
    static_cast<kv::entry_numbers&>(gates) = entry_numbers(gate_);
    kv::log_beta log_betas;
    static_cast<kv::entry_numbers&>(log_betas) = entry_numbers(log_beta_);
    return kv::signals<kv::gate, kv::log_beta>(batch, gates, log_betas);
  }

  [[nodiscard]] int tokens() const { return count_.front(); }

  [[nodiscard]] kv::cache view() {
    std::int64_t const row = std::int64_t{model_.head_dim} * 4;
    auto const rows = [&](std::vector<float>& of) {
      return kv::plane{.base = reinterpret_cast<std::byte*>(of.data()),
                       .element = kv::codec::f32,
                       .channels = model_.head_dim,
                       .layer_stride = row * capacity_ * model_.kv_heads,
                       .token_stride = row,
                       .head_stride = row * capacity_,
                       .channel_stride = 4};
    };
    return {.shape = model_, .lanes = lanes(), .k = rows(k_), .v = rows(v_), .where = kv::identity_map(capacity_)};
  }

 private:
  [[nodiscard]] kv::lanes lanes() {
    return {.layer_end = model_.layers,
            .heads = model_.kv_heads,
            .capacity = capacity_,
            .count = {count_.data(), 0, 0, 0},
            .position = {position_.data(), 0, 0, 0}};
  }
  [[nodiscard]] kv::by_lane<float> numbers(std::vector<float>& of) const {
    return {of.data(), 0, std::int64_t{model_.kv_heads} * capacity_, capacity_};
  }
  [[nodiscard]] kv::entry_numbers entry_numbers(std::vector<float> const& of) const {
    kv::entry_numbers all;
    all.base = reinterpret_cast<std::byte const*>(of.data());
    all.head = std::int64_t{capacity_} * 4;
    all.layer = all.head * model_.kv_heads;
    all.entry = 4;
    all.entries = count_.front();
    return all;
  }

  kv::shape model_;
  int capacity_;
  gate_weights gates_;
  std::vector<int> count_ = std::vector<int>(1);
  std::vector<float> k_, v_;
  std::vector<float> gate_, log_beta_;
  std::vector<int> position_;
  double write_seconds_ = 0;
  double retention_seconds_ = 0;
};

}  // namespace tinylm
