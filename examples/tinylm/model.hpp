// tinylm: a byte-level decoder of four layers. Attention reads whatever entries the cache still holds.
#pragma once

#include <cstdint>
#include <functional>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/retention_gates.hpp>
#include <span>
#include <vector>

#include "attention.hpp"
#include "weights.hpp"

namespace tinylm {

/// What gates read: a layer's rows of the fresh tokens, before its attention. Valid until the next layer.
struct layer_rows {
  int layer = 0;
  kv::hidden_rows normed{};    ///< what went into keys and values: behind the layer's input norm
  kv::row_view keys_before{};  ///< before RoPE, found by lane and fresh token; and after
  kv::row_view keys_after{};
};

/// What a caller may want of a forward besides logits.
struct forward_hooks {
  /// Keys, values and queries of a layer are where they belong; which entries its lanes read may still be changed, by
  /// the counts and tables behind the cache's view.
  std::function<void(layer_rows const&)> before_attention{};
  std::function<void(int layer)> after_layer{};  ///< the layer is done
  kv::by_lane<std::uint8_t const> hidden{};      ///< see attention_call; for tests
  kv::mask_rows const* mask = nullptr;           ///< see attention_call
  vertical_slash const* slash = nullptr;         ///< see attention_call
};

/// The weights, and memory for one forward at a time. Knows no policy and no logical length: the text says where it is.
class model {
 public:
  explicit model(weights from);

  [[nodiscard]] config const& about() const { return weights_.about; }
  [[nodiscard]] weights const& parameters() const { return weights_; }

  /// Runs the last `new_tokens` bytes of `text` (prefill: many, decode: one) and returns their logits, [fresh][vocab],
  /// valid until the next forward.
  ///
  /// - in: `text`, the sequence from its start (n-grams look a few bytes back); `into`, a cache to which the fresh
  /// tokens
  ///   were appended already: the last `new_tokens` entries of every lane are theirs. Their rows of K and V are written
  ///   here.
  /// - out: `queries` grows by `new_tokens` rows.
  /// - throws: `invalid_argument` if the cache is another model's, or its last positions are not the text's.
  std::span<float const> forward(kv::host_executor& exec, std::span<std::uint8_t const> text, int num_new_tokens,
                                 kv::cache const& into, query_rows& queries, forward_hooks const& hooks = {});

 private:
  /// The arguments of a forward, for its steps.
  struct pass;

  void check(std::span<std::uint8_t const> text, int num_new_tokens, kv::cache const& into) const;
  void embed(pass const& now);
  void make_phases(pass const& now);
  void attention(pass const& now, int layer);
  void place_rows(pass const& now, int layer);
  [[nodiscard]] layer_rows rows_of(int layer);
  void mlp(pass const& now, int layer);

  weights weights_;
  std::vector<float> frequency_;  ///< [D / 2], radians a position
  std::vector<float> cosine_;     ///< [rows][D / 2], and sine_
  std::vector<float> sine_;
  std::vector<float> x_;       ///< [rows][width]
  std::vector<float> normed_;  ///< [rows][width]
  std::vector<float> wide_;    ///< [rows][q, k, v or gate, up]
  std::vector<float> keys_;    ///< [rows][KV head][D], before RoPE
  std::vector<float> inner_;   ///< [rows][what wo or down reads]
  std::vector<float> logits_;
  std::vector<std::vector<float>> scratch_;
};

}  // namespace tinylm
