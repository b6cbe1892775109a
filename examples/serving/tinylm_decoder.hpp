// tinylm as the engine calls it.
#pragma once

#include <kvpolicy/io/gate_files.hpp>
#include <string>
#include <tinylm/model.hpp>
#include <vector>

#include "decoder.hpp"

namespace serving {

/// tinylm and, if `with_gate`, the retention gate of TRIM-KV that was trained for it.
class tinylm_decoder final : public decoder {
 public:
  tinylm_decoder(kv::host_executor& exec, std::string const& folder, int tokens, bool with_gate)
      : exec_(&exec),
        model_(tinylm::read_weights(folder + "/weights.safetensors")),
        rows_(model_.about().shape(), tokens),
        tokens_(tokens) {
    log_betas_.resize(static_cast<std::size_t>(lanes() * tokens));
    if (!with_gate) return;
    gate_ = std::make_unique<kv::retention_gate_file>(kv::safetensors_reader(folder + "/retention_gate.safetensors"));
    gate_->weights().check("serving", shape());
    kv::ops::retention_gates.reserve(exec, gate_->weights());
  }

  [[nodiscard]] kv::shape shape() const override { return model_.about().shape(); }

  void forward(std::span<forward_part const> parts, kv::cache const& into) override {
    parts_.clear();
    for (forward_part const& one : parts) parts_.push_back({one.text, one.tokens, one.slot});
    rows_.clear();
    tinylm::forward_hooks hooks;
    if (gate_) hooks.before_attention = [&](tinylm::layer_rows const& rows) { compute_log_betas(rows); };
    logits_ = model_.forward(*exec_, parts_, into, rows_, hooks);
  }

  [[nodiscard]] std::span<float const> logits(int row) const override {
    auto const vocab = static_cast<std::size_t>(model_.about().vocab);
    return logits_.subspan(static_cast<std::size_t>(row) * vocab, vocab);
  }
  [[nodiscard]] kv::queries queries(int first, int rows) const override { return rows_.signal(first, rows); }
  [[nodiscard]] kv::log_beta log_betas(int first, int rows) const override {
    kv::log_beta made;
    made.base = reinterpret_cast<std::byte const*>(log_betas_.data() + first);
    made.entry = sizeof(float);
    made.head = tokens_ * made.entry;
    made.layer = made.head * shape().kv_heads;
    made.entries = rows;
    return made;
  }

 private:
  [[nodiscard]] int lanes() const { return shape().layers * shape().kv_heads; }

  /// The gate reads each row alone, so the rows of all requests are one sequence to it.
  void compute_log_betas(tinylm::layer_rows const& rows) {
    int count = rows_.rows();
    int const heads = shape().kv_heads;
    kv::lanes const batch{.layer_begin = rows.layer,
                          .layer_end = rows.layer + 1,
                          .heads = heads,
                          .bound = tokens_,
                          .count = {&count, 0, 0, 0}};
    kv::ops::retention_gates(*exec_, batch, rows.normed, gate_->weights(),
                             kv::by_lane<float>{log_betas_.data(), 0, std::int64_t{heads} * tokens_, tokens_});
  }

  kv::host_executor* exec_;
  tinylm::model model_;
  std::unique_ptr<kv::retention_gate_file> gate_;
  tinylm::query_rows rows_;
  int tokens_;
  std::vector<tinylm::forward_part> parts_;
  std::vector<float> log_betas_;  ///< [lane][row]
  std::span<float const> logits_;
};

}  // namespace serving
