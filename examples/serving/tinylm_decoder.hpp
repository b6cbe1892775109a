// SPDX-License-Identifier: Apache-2.0
// tinylm as the engine calls it.
#pragma once

#include <kvpolicy/io/gate_files.hpp>
#include <string>
#include <tinylm/model.hpp>
#include <vector>

#include "decoder.hpp"

namespace serving {

/// tinylm and, if `with_gate`, the retention gate of TRIM-KV that was trained for it.
///
/// A forward needs the queries of one layer at a time. Those that a policy reads are kept of all layers: at most
/// `kept_queries` rows.
class tinylm_decoder final : public decoder {
 public:
  tinylm_decoder(kv::host_executor& exec, std::string const& folder, int tokens, bool with_gate, int kept_queries)
      : exec_(&exec),
        model_(tinylm::read_weights(folder + "/weights.safetensors")),
        rows_(a_layer(model_.about().shape()), tokens),
        kept_(model_.about().shape(), std::max(1, kept_queries)),
        tokens_(tokens) {
    if (!with_gate) return;
    log_betas_.resize(static_cast<std::size_t>(lanes() * tokens));
    gate_ = std::make_unique<kv::retention_gate_file>(kv::safetensors_reader(folder + "/retention_gate.safetensors"));
    gate_->weights().check("serving", shape());
    kv::ops::retention_gates.reserve(gate_exec_, gate_->weights());
  }

  [[nodiscard]] kv::shape shape() const override { return model_.about().shape(); }

  void forward(std::span<forward_part const> parts, kv::cache const& into) override {
    parts_.clear();
    asked_.clear();
    rows_.clear();
    kept_.clear();
    for (forward_part const& one : parts) {
      parts_.push_back({one.text, one.tokens, one.slot});
      int const position = static_cast<int>(one.text.size()) - one.queries;
      asked_.push_back({one.queries > 0 ? kept_.add(position, one.queries) : 0, one.queries});
    }
    tinylm::forward_hooks hooks;
    hooks.before_attention = [&](tinylm::layer_rows const& rows) {
      keep_queries(rows.layer);
      if (gate_) compute_log_betas(rows);
    };
    logits_ = model_.forward(*exec_, parts_, into, rows_, hooks);
  }

  [[nodiscard]] std::span<float const> logits(int row) const override {
    auto const vocab = static_cast<std::size_t>(model_.about().vocab);
    return logits_.subspan(static_cast<std::size_t>(row) * vocab, vocab);
  }
  [[nodiscard]] kv::queries queries(int part) const override {
    auto const [first, rows] = asked_[static_cast<std::size_t>(part)];
    return kept_.signal(first, rows);
  }
  [[nodiscard]] kv::log_beta log_betas(int first, int rows) const override {
    kv::log_beta made;
    made.base = reinterpret_cast<std::byte const*>(log_betas_.data() + first);
    made.entry = sizeof(float);
    made.head = tokens_ * made.entry;
    made.layer = made.head * shape().kv_heads;
    made.entries = rows;
    return made;
  }

  void count(held_memory& into) const override {
    auto const floats = [](std::int64_t n) { return n * std::int64_t{sizeof(float)}; };
    kv::shape const model = shape();
    into.queries += floats(std::int64_t{kept_.capacity()} * model.layers * model.query_heads * model.head_dim);
    if (!gate_) return;
    auto const& sizes = gate_->weights();
    into.gate += floats(sizes.layers * kv::retention_gate_weights::parameters(sizes.heads, sizes.width, sizes.hidden)) +
                 floats(std::ssize(log_betas_)) + static_cast<std::int64_t>(gate_exec_.reserved());
  }

 private:
  static kv::shape a_layer(kv::shape model) {
    model.layers = 1;
    return model;
  }
  [[nodiscard]] int lanes() const { return shape().layers * shape().kv_heads; }

  /// Copies the queries of a layer that the parts have asked for.
  void keep_queries(int layer) {
    int end = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      end += parts_[i].num_new_tokens;
      auto const [first, rows] = asked_[i];
      for (int head = 0; head < shape().query_heads; ++head) {
        for (int r = 0; r < rows; ++r) {
          std::copy_n(rows_.row(0, head, end - rows + r), shape().head_dim, kept_.row(layer, head, first + r));
        }
      }
    }
  }

  /// The gate reads each row alone, so the rows of all requests are one sequence to it.
  void compute_log_betas(tinylm::layer_rows const& rows) {
    int count = rows_.rows();
    int const heads = shape().kv_heads;
    kv::lanes const batch{.layer_begin = rows.layer,
                          .layer_end = rows.layer + 1,
                          .heads = heads,
                          .capacity = tokens_,
                          .count = {&count, 0, 0, 0}};
    kv::ops::retention_gates(gate_exec_, batch, rows.normed, gate_->weights(),
                             kv::by_lane<float>{log_betas_.data(), 0, std::int64_t{heads} * tokens_, tokens_});
  }

  kv::host_executor* exec_;
  tinylm::model model_;
  std::unique_ptr<kv::retention_gate_file> gate_;
  kv::host_executor gate_exec_;  ///< of one thread, because each has scratch of its own
  tinylm::query_rows rows_;      ///< of the layer that is computed
  tinylm::query_rows kept_;
  int tokens_;
  std::vector<tinylm::forward_part> parts_;
  std::vector<std::pair<int, int>> asked_;  ///< for each part the first row in `kept_`, and the number of rows
  std::vector<float> log_betas_;            ///< [lane][row]
  std::span<float const> logits_;
};

}  // namespace serving
