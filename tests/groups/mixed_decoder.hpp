// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

/// A layer of a decoder whose layers differ.
struct mixed_layer {
  int kv_heads = 2;
  int head_dim = 8;   ///< channels of a key; of a latent layer the channels of its row
  int value_dim = 8;  ///< of a latent layer the first channels of the row
  int rope_dim = 8;   ///< the last channels of a key, which are rotated
  double scale = 0;   ///< of q.k
  double soft_cap = 0;
  bool sinks = false;
  bool latent = false;
  int window = 0;  ///< sees so many of the newest tokens only; 0: all
  int reads = -1;  ///< reads the cache of this layer; -1: its own
};

/// A decoder of random weights. `Real` is float for the engine under test and double for its reference.
template <class Real>
class mixed_decoder {
 public:
  static constexpr int hidden = 16, query_heads = 4, vocabulary = 24;
  using row = std::vector<Real>;

  /// A token that a row of queries sees: its key and its value.
  struct seen_entry {
    Real const* key;
    Real const* value;
  };
  /// The calls of the cache: a new token's key and value of a layer and head, and what a lane shows a query row.
  std::function<void(int layer, int head, int position, row const& key, row const& value)> write;
  std::function<std::vector<seen_entry>(int layer, int head, int position)> read;
  std::function<void(int layer, int query_head, int position, row const& query)> show;  ///< may be empty

  explicit mixed_decoder(std::vector<mixed_layer> layers) : layers_(std::move(layers)) {}

  /// The logits of the next token.
  row forward(int token, int position) {
    row x(hidden);
    for (int i = 0; i < hidden; ++i) x[as_size(i)] = weight(1000, token, i);
    for (int l = 0; l < static_cast<int>(layers_.size()); ++l) add_attention(l, position, x);
    row logits;
    for (int t = 0; t < vocabulary; ++t) {
      Real sum = 0;
      for (int i = 0; i < hidden; ++i) sum += x[as_size(i)] * weight(1001, t, i);
      logits.push_back(sum);
    }
    return logits;
  }

  [[nodiscard]] static Real sink_of(int layer, int query_head) { return weight(900 + layer, query_head, 0); }

 private:
  /// The same number in both precisions.
  static Real weight(int matrix, int i, int j) {
    return static_cast<Real>(
        number_of(static_cast<std::uint64_t>(matrix) * 1000003u + static_cast<std::uint64_t>(i * 1009 + j)));
  }
  static row product(int matrix, row const& x, int outputs) {
    row y;
    for (int o = 0; o < outputs; ++o) {
      Real sum = 0;
      for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * weight(matrix, o, static_cast<int>(i));
      y.push_back(sum / static_cast<Real>(std::sqrt(static_cast<double>(x.size()))));
    }
    return y;
  }
  static void rotate(row& x, int rope_dim, int position) {
    int const first = static_cast<int>(x.size()) - rope_dim;
    for (int i = 0; i < rope_dim / 2; ++i) {
      double const angle = position * std::pow(100.0, -2.0 * i / rope_dim);
      auto const c = static_cast<Real>(std::cos(angle));
      auto const s = static_cast<Real>(std::sin(angle));
      Real& a = x[as_size(first + i)];
      Real& b = x[as_size(first + rope_dim / 2 + i)];
      Real const was = a;
      a = was * c - b * s;
      b = was * s + b * c;
    }
  }

  void add_attention(int l, int position, row& x) {
    mixed_layer const& layer = layers_[as_size(l)];
    int const owner = layer.reads >= 0 ? layer.reads : l;
    for (int head = 0; layer.reads < 0 && head < layer.kv_heads; ++head) {
      row key = product(10 * l + 1 + 100 * head, x, layer.head_dim);
      row value = layer.latent ? row(key.begin(), key.begin() + layer.value_dim)
                               : product(10 * l + 2 + 100 * head, x, layer.value_dim);
      rotate(key, layer.rope_dim, position);
      write(l, head, position, key, value);
    }
    row all;
    for (int h = 0; h < query_heads; ++h) {
      row query = product(10 * l + 3 + 100 * h, x, layer.head_dim);
      rotate(query, layer.rope_dim, position);
      if (show) show(l, h, position, query);
      row const one = attend(layer, l, h, query, read(owner, h / (query_heads / layer.kv_heads), position));
      all.insert(all.end(), one.begin(), one.end());
    }
    row const out = product(10 * l + 4, all, hidden);
    for (int i = 0; i < hidden; ++i) x[as_size(i)] += out[as_size(i)];
  }

  static row attend(mixed_layer const& layer, int l, int query_head, row const& query,
                    std::vector<seen_entry> const& seen) {
    std::vector<Real> logits;
    Real highest = layer.sinks ? sink_of(l, query_head) : -std::numeric_limits<Real>::infinity();
    for (seen_entry const& each : seen) {
      Real sum = 0;
      for (std::size_t d = 0; d < query.size(); ++d) sum += query[d] * each.key[d];
      sum *= static_cast<Real>(layer.scale);
      auto const cap = static_cast<Real>(layer.soft_cap);
      if (cap > 0) sum = cap * std::tanh(sum / cap);
      logits.push_back(sum);
      highest = std::max(highest, sum);
    }
    Real all = layer.sinks ? std::exp(sink_of(l, query_head) - highest) : Real{0};
    row out(as_size(layer.value_dim));
    for (std::size_t e = 0; e < seen.size(); ++e) {
      Real const p = std::exp(logits[e] - highest);
      all += p;
      for (int d = 0; d < layer.value_dim; ++d) out[as_size(d)] += p * seen[e].value[d];
    }
    for (Real& each : out) each /= all;
    return out;
  }

  std::vector<mixed_layer> layers_;
};

}  // namespace kvpolicy_test
