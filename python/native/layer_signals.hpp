// The signals of a call about arrays.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"

namespace kvpolicy_python {

/// The model of an `evictor`.
struct model_shape {
  kv::shape sizes{};
  std::optional<float> scale{};  ///< the factor of q.k; empty: 1 / sqrt(head_dim)
  float soft_cap = 0;

  [[nodiscard]] int value_channels() const { return sizes.value_dim != 0 ? sizes.value_dim : sizes.head_dim; }
};

/// What a caller gives to a call: one array [sequence, KV head, row, channel] for each layer.
struct given_rows {
  std::vector<rows> keys;
  std::vector<rows> values;
  std::vector<array> scores;  ///< at most one: [layer, sequence, KV head, entry]
  std::vector<rows> turn{};   ///< the query rows of a turn
};

/// What a forward shows of one layer: the rows and the numbers of new tokens. Each is optional. The last one is that of
/// a sequence's last token; before a sequence's new tokens there is padding.
struct shown_tokens {
  std::optional<rows> queries{};       ///< the last query rows
  std::optional<rows> turn{};          ///< the query rows of a turn
  std::optional<array> log_beta{};     ///< [sequence, KV head, token]
  std::optional<array> birth_score{};  ///< [sequence, KV head, token]
};

/// Refuses an array of another batch.
inline void check_batch(char const* call, char const* name, std::int64_t sequences, int batch) {
  kv::expects(sequences == batch, call, std::string(name) + ".shape", std::to_string(sequences) + " sequences",
              [&] { return "the batch has " + std::to_string(batch); });
}

/// The signals of a call, and the tables that they point to.
class layer_signals {
 public:
  /// - in: `lanes` are those of the call, with the entries that they hold; `given` is about all their layers.
  /// - throws: `invalid_argument` if an array has another shape.
  layer_signals(char const* call, model_shape const& model, given_rows const& given, kv::lanes const& lanes)
      : call_(call), model_(model), sequences_(lanes.sequences), layers_(lanes.layers()), all(lanes) {
    for (int l = lanes.layer_begin; l < lanes.layer_end; ++l) {
      for (int s = 0; s < lanes.sequences; ++s) {
        longest_.push_back(0);
        for (int h = 0; h < lanes.heads; ++h) longest_.back() = std::max(longest_.back(), lanes.committed({s, l, h}));
      }
    }
    add("keys", given.keys, model.sizes.head_dim, key_rows_, [&](kv::row_view const& view) {
      keys_ = {view, {.scale = model.scale, .soft_cap = model.soft_cap}};
      all.add(keys_);
    });
    add("values", given.values, model.value_channels(), value_rows_, [&](kv::row_view const& view) {
      values_ = {view};
      all.add(values_);
    });
    if (!given.scores.empty()) add_scores(given.scores.front());
  }
  layer_signals(layer_signals const&) = delete;
  layer_signals& operator=(layer_signals const&) = delete;

 private:
  template <class Offer>
  void add(char const* name, std::vector<rows> const& given, int channels, std::unique_ptr<layer_rows>& to,
           Offer const& offer) {
    if (given.empty()) return;
    auto const shape = [name] { return std::string(name) + ".shape"; };
    kv::expects(std::ssize(given) == layers_, call_, name, std::to_string(given.size()) + " layers",
                [&] { return "there are " + std::to_string(layers_); });
    rows const& first = given.front();
    check_batch(call_, name, first.sequences, sequences_);
    kv::expects(first.heads == model_.sizes.kv_heads, call_, shape, std::to_string(first.heads) + " heads",
                [&] { return "the model has " + std::to_string(model_.sizes.kv_heads) + " KV heads"; });
    kv::expects(first.channels == channels, call_, shape, std::to_string(first.channels) + " channels",
                [&] { return "a row has " + std::to_string(channels) + " channels"; });
    to = std::make_unique<layer_rows>(call_, name, given, longest_);
    offer(to->view());
  }

  void add_scores(array const& from) {
    kv::expects(
        from.ndim() == 4 && from.device_type() == nb::device::cpu::value, call_, "scores.shape",
        [&] { return shape_text(from); }, "the axes are layer, sequence, KV head and entry, on the CPU");
    kv::expects(codec_of(call_, "scores", from) == kv::codec::f32, call_, "scores.dtype", "16 bits",
                "scores are float32");
    check_batch(call_, "scores", static_cast<std::int64_t>(from.shape(1)), sequences_);
    int const most = *std::max_element(longest_.begin(), longest_.end());
    bool const fits = static_cast<int>(from.shape(0)) == layers_ &&
                      static_cast<int>(from.shape(2)) == model_.sizes.kv_heads &&
                      static_cast<std::int64_t>(from.shape(3)) >= most && from.stride(3) == 1;
    kv::expects(
        fits, call_, "scores.shape", [&] { return shape_text(from); },
        [&] {
          return "it is " + std::to_string(layers_) + " layers, the sequences, " +
                 std::to_string(model_.sizes.kv_heads) + " KV heads and at least " + std::to_string(most) +
                 " contiguous entries";
        });
    scores_ = {{static_cast<float const*>(from.data()), from.stride(1), from.stride(0), from.stride(2)}};
    all.add(scores_);
  }

  char const* call_;
  model_shape const& model_;
  int sequences_;
  std::vector<int> longest_;  ///< the entries of the longest head, [layer, sequence]
  int layers_;
  std::unique_ptr<layer_rows> key_rows_;
  std::unique_ptr<layer_rows> value_rows_;
  kv::keys keys_{};
  kv::values values_{};
  kv::external_scores scores_{};

 public:
  kv::any_signals all;  ///< points to the members above
};

}  // namespace kvpolicy_python
