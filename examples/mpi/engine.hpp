// SPDX-License-Identifier: Apache-2.0
// A tensor-parallel engine in small: a decoder with RoPE and grouped-query attention, of which each rank computes an
// equal part of the heads. The weights of a head are random numbers that depend on the head only, so that a model has
// the same weights on any number of ranks. It has attention only, because what else a layer computes does not touch the
// cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace examples {

/// The heads of one rank, for one sequence. It generates greedily.
class tensor_parallel_engine {
 public:
  static constexpr int layers = 2, kv_heads_of_model = 4, group = 2, head_dim = 16, vocabulary = 64, hidden = 64;
  using sum_over_ranks = std::function<void(float*, std::size_t)>;

  /// - in: `sum` writes the sum over all ranks to every rank. `row_capacity` is the number of tokens that the cache
  /// holds.
  /// - throws: `std::invalid_argument` on every rank if the ranks cannot have equally many heads.
  tensor_parallel_engine(int rank, int ranks, int row_capacity, sum_over_ranks sum)
      : kv_heads(kv_heads_of_model / ranks),
        query_heads(kv_heads * group),
        capacity(row_capacity),
        first_head_(rank * kv_heads),
        sum_(std::move(sum)) {
    if (kv_heads * ranks != kv_heads_of_model) {
      throw std::invalid_argument("tensor_parallel_engine: ranks = " + std::to_string(ranks) + ", but the model has " +
                                  std::to_string(kv_heads_of_model) + " KV heads, and all ranks have equally many");
    }
    k.resize(size(layers * capacity * kv_heads * head_dim));
    v.resize(k.size());
    counts.resize(size(layers * kv_heads));
    positions.resize(counts.size() * size(capacity));
    for (int layer = 0; layer < layers; ++layer) {
      for (int head = 0; head < kv_heads; ++head) heads_.emplace_back(layer, first_head_ + head);
    }
  }

  int kv_heads;     ///< of this rank
  int query_heads;  ///< of this rank
  int capacity;

  // The cache of this rank's heads.
  std::vector<float> k, v;     ///< [layer, row, KV head, channel]
  std::vector<int> counts;     ///< [layer, KV head]: the entries of each lane
  std::vector<int> positions;  ///< [layer, KV head, row]
  int length = 0;              ///< the tokens so far, and so the position of the next one

  // What the last forward leaves.
  std::vector<float> queries;      ///< [layer, new token, query head, channel], after RoPE, of this rank's heads
  std::vector<int> row_positions;  ///< [new token]

  /// Runs the model on new tokens, whose entries are the last ones of every lane. Returns the most likely next token,
  /// which is the same on all ranks.
  int forward(std::vector<int> const& tokens) {
    int const rows = static_cast<int>(tokens.size());
    queries.assign(size(layers * rows * query_heads * head_dim), 0.0f);
    row_positions.resize(tokens.size());
    std::iota(row_positions.begin(), row_positions.end(), length);
    std::vector<float> x;
    for (int const token : tokens) {
      float const* const row = embedding_.data() + token * hidden;
      x.insert(x.end(), row, row + hidden);
    }
    for (int layer = 0; layer < layers; ++layer) {
      std::vector<float> outputs(x.size());  // of this rank's heads
      write_rows(layer, rows, x);
      for (int r = 0; r < rows; ++r) {
        for (int head = 0; head < query_heads; ++head) attend(layer, rows, r, head, outputs.data() + r * hidden);
      }
      sum_(outputs.data(), outputs.size());  // as every tensor-parallel engine does after attention
      std::transform(x.begin(), x.end(), outputs.begin(), x.begin(), std::plus<>{});
    }
    length += rows;
    return most_likely(x.data() + (rows - 1) * hidden);
  }

 private:
  static std::size_t size(int count) { return static_cast<std::size_t>(count); }

  static std::vector<float> random_numbers(int count, std::uint32_t seed, float largest) {
    std::vector<float> made;
    seed = (seed + 1) * 2654435761u;
    for (int i = 0; i < count; ++i) {
      seed = seed * 1664525u + 1013904223u;
      made.push_back(largest * (static_cast<float>(seed >> 8) / 8388608.0f - 1.0f));
    }
    return made;
  }

  /// The weights of one KV head and of the query heads that read it.
  struct head_weights {
    head_weights(int layer, int head) : head_weights(static_cast<std::uint32_t>(layer * 100 + head) * 4) {}
    explicit head_weights(std::uint32_t seed)
        : q(random_numbers(group * head_dim * hidden, seed, 0.45f)),
          k(random_numbers(head_dim * hidden, seed + 1, 0.45f)),
          v(random_numbers(head_dim * hidden, seed + 2, 0.35f)),
          out(random_numbers(hidden * group * head_dim, seed + 3, 0.35f)) {}
    std::vector<float> q, k, v, out;
  };

  /// Multiplies one head's part of a matrix [outputs, hidden] with a row of numbers.
  static void multiply(float const* weights, float const* x, int outputs, float* y) {
    for (int o = 0; o < outputs; ++o) y[o] = std::inner_product(x, x + hidden, weights + o * hidden, 0.0f);
  }
  static std::vector<float> normalised(float const* x) {
    float const sum = std::inner_product(x, x + hidden, x, 1e-6f);
    std::vector<float> made(x, x + hidden);
    for (float& each : made) each *= std::sqrt(static_cast<float>(hidden) / sum);
    return made;
  }
  /// Rotates a query or a key by the angles of its position.
  static void rope(float* x, int position) {
    for (int i = 0; i < head_dim; i += 2) {
      float const angle = static_cast<float>(position) * std::pow(100.0f, -static_cast<float>(i) / head_dim);
      float const a = x[i], b = x[i + 1];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
  }

  [[nodiscard]] int lane(int layer, int kv_head) const { return layer * kv_heads + kv_head; }
  /// The key and the value of an entry are this far from the beginnings of k and v.
  [[nodiscard]] int row(int layer, int kv_head, int entry) const {
    return ((layer * capacity + entry) * kv_heads + kv_head) * head_dim;
  }
  [[nodiscard]] float* query(int layer, int rows, int r, int head) {
    return queries.data() + ((layer * rows + r) * query_heads + head) * head_dim;
  }

  /// Writes the queries of the new tokens, and their keys and values into the last entries of each lane.
  void write_rows(int layer, int rows, std::vector<float> const& x) {
    for (int r = 0; r < rows; ++r) {
      std::vector<float> const input = normalised(x.data() + r * hidden);
      int const position = row_positions[size(r)];
      for (int head = 0; head < kv_heads; ++head) {
        head_weights const& with = heads_[size(lane(layer, head))];
        int const to = row(layer, head, counts[size(lane(layer, head))] - rows + r);
        multiply(with.k.data(), input.data(), head_dim, k.data() + to);
        multiply(with.v.data(), input.data(), head_dim, v.data() + to);
        multiply(with.q.data(), input.data(), group * head_dim, query(layer, rows, r, head * group));
        rope(k.data() + to, position);
        for (int g = 0; g < group; ++g) rope(query(layer, rows, r, head * group + g), position);
      }
    }
  }

  /// Adds the output of one query head for one new token.
  void attend(int layer, int rows, int r, int head, float* output) {
    int const kv_head = head / group, position = row_positions[size(r)];
    std::size_t const lane_index = size(lane(layer, kv_head));
    int const* const held = positions.data() + lane_index * size(capacity);
    float const* const q = query(layer, rows, r, head);
    std::vector<float> weight;
    for (int e = 0; e < counts[lane_index] && held[e] <= position; ++e) {
      float const* const key = k.data() + row(layer, kv_head, e);
      weight.push_back(std::inner_product(q, q + head_dim, key, 0.0f) / std::sqrt(static_cast<float>(head_dim)));
    }
    float const largest = *std::max_element(weight.begin(), weight.end());
    for (float& each : weight) each = std::exp(each - largest);
    float const sum = std::accumulate(weight.begin(), weight.end(), 0.0f);
    std::vector<float> mixed(size(head_dim));
    for (std::size_t e = 0; e < weight.size(); ++e) {
      float const* const value = v.data() + row(layer, kv_head, static_cast<int>(e));
      for (int d = 0; d < head_dim; ++d) mixed[size(d)] += weight[e] / sum * value[d];
    }
    float const* const out = heads_[lane_index].out.data() + head % group * head_dim;
    for (int o = 0; o < hidden; ++o) {
      output[o] += std::inner_product(mixed.begin(), mixed.end(), out + o * group * head_dim, 0.0f);
    }
  }

  [[nodiscard]] int most_likely(float const* x) const {
    std::vector<float> const input = normalised(x);
    std::vector<float> logits(vocabulary);
    multiply(head_.data(), input.data(), vocabulary, logits.data());
    return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  int first_head_;  ///< in the whole model
  sum_over_ranks sum_;
  std::vector<head_weights> heads_;  ///< [layer, KV head] of this rank
  std::vector<float> embedding_ = random_numbers(vocabulary * hidden, 9001, 1.0f);
  std::vector<float> head_ = random_numbers(vocabulary * hidden, 9002, 1.0f);
};

}  // namespace examples
