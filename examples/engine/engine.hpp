// SPDX-License-Identifier: Apache-2.0
// A small inference engine: a decoder with RoPE and grouped-query attention, whose weights are random numbers that are
// the same in every run. It generates greedily, for a batch of sequences that may differ in length.
//
// A lane is one KV head of one layer of one sequence. Each lane has a count, a position for each entry, and the row in
// which each entry is stored, so that lanes may hold different entries. RoPE and the causal mask use positions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

/// Numbers in one block of memory.
template <class T>
class tensor {
 public:
  explicit tensor(int size = 0) : values_(static_cast<std::size_t>(size)) {}
  [[nodiscard]] T* data() { return values_.data(); }
  [[nodiscard]] T const* data() const { return values_.data(); }
  [[nodiscard]] T& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] T operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }

 private:
  std::vector<T> values_;
};

/// The new tokens of each sequence of a batch.
using token_batch = std::vector<std::vector<int>>;

/// A prompt of random tokens.
inline std::vector<int> make_prompt(int tokens, std::uint32_t seed = 1) {
  std::vector<int> prompt;
  for (int i = 0; i < tokens; ++i) {
    seed = seed * 1664525u + 1013904223u;
    prompt.push_back(static_cast<int>(seed >> 26));
  }
  return prompt;
}

/// One entry of a lane: its position, and its rows of the cache.
struct cached_entry {
  int position;
  float* k;
  float* v;
};

class engine {
 public:
  static constexpr int layers = 2, query_heads = 4, kv_heads = 2, head_dim = 16, vocabulary = 64;
  static constexpr int lanes = layers * kv_heads;  ///< of one sequence

  /// Each sequence has memory for `rows_each` tokens.
  engine(int batch, int rows_each) : sequences(batch), capacity(rows_each) {
    for (int i = 0; i < sequences * lanes * capacity; ++i) {
      rows[i] = i / (lanes * capacity) * capacity + i % capacity;
    }
  }
  virtual ~engine() = default;

  int sequences, capacity;

  // example-begin memory
  // The cache. Each sequence has `capacity` rows in each layer.
  tensor<float> k{layers * sequences * capacity * kv_heads * head_dim};  ///< [layer, sequence, row, KV head, channel]
  tensor<float> v{layers * sequences * capacity * kv_heads * head_dim};
  tensor<int> counts{sequences * lanes};                ///< [sequence, layer, KV head]: the entries of each lane
  tensor<int> positions{sequences * lanes * capacity};  ///< [sequence, layer, KV head, entry]: ascending
  tensor<int> rows{sequences * lanes * capacity};       ///< [sequence, layer, KV head, entry]: the row of each entry,
                                                        ///< at first sequence * capacity + 0, 1, 2, ...
  tensor<int> lengths{sequences};  ///< [sequence]: the tokens so far, and so the position of the next one

  // What the last forward leaves. The next one allocates these tensors anew.
  token_batch new_tokens;       ///< its tokens
  int num_rows = 0;             ///< the largest number of new tokens of a sequence
  tensor<int> valid_rows;       ///< [sequence]: the number of new tokens of each sequence
  tensor<int> row_positions;    ///< [sequence, new token]; 0 where a sequence has no such token
  tensor<float> queries;        ///< [layer, sequence, new token, query head, channel], after RoPE
  tensor<float> probabilities;  ///< [layer, sequence, query head, new token, entry], in the order of the lane's entries
  tensor<float> logits{sequences * vocabulary};  ///< [sequence, vocabulary], of the last token of each sequence
  // example-end memory

  /// If it is set: whether the token at `row_position` may see the entry at `entry_position` of this lane.
  std::function<bool(int sequence, int layer, int kv_head, int row_position, int entry_position)> sees;

  /// Adds entries for new tokens to the counts and positions of all lanes of a sequence. Call it before `forward`,
  /// which writes the rows of these entries.
  void append(int sequence, int tokens) {
    for (int lane = sequence * lanes; lane < (sequence + 1) * lanes; ++lane) {
      if (tokens > capacity - counts[lane]) throw std::length_error("the cache is full");
      for (int i = 0; i < tokens; ++i) positions[lane * capacity + counts[lane]++] = lengths[sequence] + i;
    }
  }

  /// Runs the model on the new tokens of each sequence, whose entries are the last ones of every lane. Returns the most
  /// likely next token of each sequence.
  std::vector<int> forward(token_batch const& tokens) {
    begin_forward(tokens);
    std::vector<int> next;
    for (int s = 0; s < sequences; ++s) {
      if (valid_rows[s] > 0) run(s, tokens[static_cast<std::size_t>(s)]);
      lengths[s] += valid_rows[s];
      float const* const from = logits.data() + s * vocabulary;
      next.push_back(static_cast<int>(std::max_element(from, from + vocabulary) - from));
    }
    return next;
  }

  /// The entries of a lane, in the order of their positions.
  [[nodiscard]] virtual std::vector<cached_entry> entries(int sequence, int layer, int kv_head) {
    int const lane = (sequence * layers + layer) * kv_heads + kv_head;
    std::vector<cached_entry> all;
    for (int i = 0; i < counts[lane]; ++i) {
      int const row = layer * sequences * capacity + rows[lane * capacity + i];
      int const first = (row * kv_heads + kv_head) * head_dim;
      all.push_back({positions[lane * capacity + i], k.data() + first, v.data() + first});
    }
    return all;
  }

 private:
  static constexpr int hidden = query_heads * head_dim, kv_hidden = kv_heads * head_dim, inner = 2 * hidden;

  /// A matrix [inputs, outputs] of numbers that depend on `seed` only.
  struct matrix {
    matrix(int in, int out, std::uint32_t seed, float gain) : inputs(in), outputs(out), weights(in * out) {
      float const largest = gain * std::sqrt(3.0f / static_cast<float>(in));
      for (int i = 0; i < in * out; ++i) {
        seed = seed * 1664525u + 1013904223u;
        weights[i] = largest * (static_cast<float>(seed >> 8) / 8388608.0f - 1.0f);
      }
    }
    [[nodiscard]] std::vector<float> operator()(std::vector<float> const& x) const {
      std::vector<float> y(static_cast<std::size_t>(outputs));
      float const* weight = weights.data();
      for (float const each : x) {
        for (float& sum : y) sum += each * *weight++;
      }
      return y;
    }
    int inputs, outputs;
    tensor<float> weights;
  };
  struct layer_weights {
    explicit layer_weights(std::uint32_t seed)
        : q(hidden, hidden, seed + 1, 2.0f),
          k(hidden, kv_hidden, seed + 2, 2.0f),
          v(hidden, kv_hidden, seed + 3, 2.0f),
          out(hidden, hidden, seed + 4, 0.5f),
          up(hidden, inner, seed + 5, 1.5f),
          down(inner, hidden, seed + 6, 1.5f) {}
    matrix q, k, v, out, up, down;
  };
  matrix embedding_{vocabulary, hidden, 7, 8.0f}, head_{hidden, vocabulary, 8, 1.0f};
  std::vector<layer_weights> layers_{layer_weights(100), layer_weights(200)};

  /// Scales a vector to a mean square of 1.
  static std::vector<float> normalised(std::vector<float> x) {
    float sum = 1e-6f;
    for (float const each : x) sum += each * each;
    for (float& each : x) each *= std::sqrt(static_cast<float>(x.size()) / sum);
    return x;
  }
  static void add(std::vector<float>& to, std::vector<float> const& x) {
    std::transform(to.begin(), to.end(), x.begin(), to.begin(), std::plus<>{});
  }
  /// Rotates the heads of a query or a key by the angles of its position.
  static void rope(std::vector<float>& x, int position) {
    int const size = static_cast<int>(x.size());
    for (int i = 0; i < size; i += 2) {
      float const angle = static_cast<float>(position) * std::pow(100.0f, -static_cast<float>(i % head_dim) / head_dim);
      float *const a = x.data() + i, *const b = a + 1;
      float const turned = *a * std::cos(angle) - *b * std::sin(angle);
      *b = *a * std::sin(angle) + *b * std::cos(angle);
      *a = turned;
    }
  }

  void begin_forward(token_batch const& tokens) {
    new_tokens = tokens;
    valid_rows = tensor<int>(sequences);
    num_rows = 0;
    for (int s = 0; s < sequences; ++s) {
      valid_rows[s] = static_cast<int>(tokens[static_cast<std::size_t>(s)].size());
      num_rows = std::max(num_rows, valid_rows[s]);
    }
    row_positions = tensor<int>(sequences * num_rows);
    queries = tensor<float>(layers * sequences * num_rows * hidden);
    probabilities = tensor<float>(layers * sequences * query_heads * num_rows * capacity);
    for (int s = 0; s < sequences; ++s) {
      for (int r = 0; r < valid_rows[s]; ++r) row_positions[s * num_rows + r] = lengths[s] + r;
    }
  }

  void run(int s, std::vector<int> const& tokens) {
    std::vector<std::vector<float>> x;
    for (int const token : tokens) {
      float const* const row = embedding_.weights.data() + token * hidden;
      x.emplace_back(row, row + hidden);
    }
    for (int layer = 0; layer < layers; ++layer) {
      layer_weights const& with = layers_[static_cast<std::size_t>(layer)];
      write_rows(s, layer, with, x);
      for (int r = 0; r < valid_rows[s]; ++r) {
        std::vector<float>& row = x[static_cast<std::size_t>(r)];
        add(row, with.out(attend(s, layer, r)));
        std::vector<float> wide = with.up(normalised(row));
        for (float& each : wide) each = std::max(each, 0.0f);
        add(row, with.down(wide));
      }
    }
    std::vector<float> const last = head_(normalised(x.back()));
    std::copy(last.begin(), last.end(), logits.data() + s * vocabulary);
  }

  /// Writes the queries of the new tokens, and their keys and values into the last entries of each lane.
  void write_rows(int s, int layer, layer_weights const& with, std::vector<std::vector<float>> const& x) {
    std::vector<std::vector<cached_entry>> lane;
    for (int h = 0; h < kv_heads; ++h) lane.push_back(entries(s, layer, h));
    for (int r = 0; r < valid_rows[s]; ++r) {
      std::vector<float> const input = normalised(x[static_cast<std::size_t>(r)]);
      int const position = row_positions[s * num_rows + r];
      std::vector<float> q = with.q(input), new_k = with.k(input), new_v = with.v(input);
      rope(q, position);
      rope(new_k, position);
      std::copy(q.begin(), q.end(), queries.data() + ((layer * sequences + s) * num_rows + r) * hidden);
      for (int h = 0; h < kv_heads; ++h) {
        cached_entry const to = *(lane[static_cast<std::size_t>(h)].end() - valid_rows[s] + r);
        std::copy_n(new_k.data() + h * head_dim, head_dim, to.k);
        std::copy_n(new_v.data() + h * head_dim, head_dim, to.v);
      }
    }
  }

  /// The attention of one new token: softmax(q k / sqrt(D)) v for each query head.
  std::vector<float> attend(int s, int layer, int r) {
    std::vector<float> output(static_cast<std::size_t>(hidden));
    int const position = row_positions[s * num_rows + r];
    for (int h = 0; h < query_heads; ++h) {
      int const kv_head = h * kv_heads / query_heads;
      float const* const q = queries.data() + ((layer * sequences + s) * num_rows + r) * hidden + h * head_dim;
      float* const p = probabilities.data() + (((layer * sequences + s) * query_heads + h) * num_rows + r) * capacity;
      float* const out = output.data() + h * head_dim;
      std::vector<cached_entry> const lane = entries(s, layer, kv_head);
      float* each = p;
      for (cached_entry const& entry : lane) {
        bool const seen = entry.position <= position && (!sees || sees(s, layer, kv_head, position, entry.position));
        float const logit = std::inner_product(q, q + head_dim, entry.k, 0.0f);
        *each++ = seen ? logit / std::sqrt(static_cast<float>(head_dim)) : -std::numeric_limits<float>::infinity();
      }
      float const largest = *std::max_element(p, each);
      std::transform(p, each, p, [&](float logit) { return std::exp(logit - largest); });
      float const sum = std::accumulate(p, each, 0.0f);
      each = p;
      for (cached_entry const& entry : lane) {
        *each /= sum;
        for (int d = 0; d < head_dim; ++d) out[d] += *each * entry.v[d];
        ++each;
      }
    }
    return output;
  }
};
