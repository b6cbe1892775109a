// SPDX-License-Identifier: Apache-2.0
// What an engine can tell of a prompt beside its entries and queries, for methods that decide once, at its end.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/projected_norm.hpp>
#include <kvpolicy/ops/query_model.hpp>
#include <kvpolicy/scorers/external_queries.hpp>
#include <vector>

#include "session.hpp"

namespace tinylm {

/// The output projections of the model, the prompt's queries before RoPE, and the rows of a run that repeats the prompt
/// chunk by chunk (KVzip). It is made once for a prompt, and serves all policies that decide about it.
///
/// The model has not learned to be asked for a repetition. So a chunk is repeated in the way that a text goes on: the
/// model reads the prompt, the `request` bytes that stand before the chunk in the prompt, and then the chunk itself. Of
/// a prompt's first chunk the request is a newline. After each chunk the sequence is cut back to the prompt.
class prompt_signals {
 public:
  static constexpr int chunk = 240;   ///< bytes that are repeated at once
  static constexpr int request = 16;  ///< bytes before them

  /// - cost: a forward for each chunk, which together have as many rows as the prompt and the requests.
  prompt_signals(model& with, kv::host_executor& exec, prompt const& from, layout lay = layout::compact)
      : about_(with.about()),
        rows_(rows_for(static_cast<int>(from.text.size()))),
        before_(from.queries),
        again_(about_.shape(), rows_),
        keys_(static_cast<std::size_t>(about_.layers * about_.kv_heads * rows_ * about_.head_dim)) {
    for (block_weights const& one : with.parameters().blocks) {
      output_.insert(output_.end(), one.wo.begin(), one.wo.end());
    }
    turn_back();
    repeat(with, exec, from, lay);
  }
  prompt_signals(prompt_signals const&) = delete;  // the signals point to it
  prompt_signals& operator=(prompt_signals const&) = delete;

  [[nodiscard]] kv::output_projection output() const {
    return kv::output_projection_of(output_.data(), kv::codec::f32, about_.width, about_.shape());
  }
  [[nodiscard]] kv::pre_rope_queries before_rope() const {
    return {before_.signal(), {.theta = static_cast<double>(about_.rope_theta)}};
  }
  [[nodiscard]] kv::external_queries repeated() const {
    kv::external_queries made{again_.signal()};
    made.position = {};  // every row sees every entry
    made.spans.begin = {begin_.data(), 0, 0, 0};
    made.spans.end = {end_.data(), 0, 0, 0};
    made.spans.keys.base = reinterpret_cast<std::byte const*>(keys_.data());
    made.spans.keys.dims = about_.head_dim;
    made.spans.keys.row = floats(about_.head_dim);
    made.spans.keys.head = floats(about_.head_dim * rows_);
    made.spans.keys.layer = floats(about_.head_dim * rows_ * about_.kv_heads);
    made.spans.keys.heads = about_.kv_heads;
    made.spans.keys.rows = rows_;
    return made;
  }

 private:
  static std::int64_t floats(int count) { return std::int64_t{count} * static_cast<std::int64_t>(sizeof(float)); }
  static int rows_for(int bytes) {
    int const chunks = (bytes + chunk - 1) / chunk;
    return bytes + 1 + (chunks - 1) * request;
  }

  /// Turns the prompt's queries back by the angles of their positions.
  void turn_back() {
    int const half = about_.head_dim / 2;
    int const* const position = before_.signal().position.data;
    for (int i = 0; i < half; ++i) {
      auto const frequency = static_cast<float>(std::pow(static_cast<double>(about_.rope_theta), -1.0 * i / half));
      for (int r = 0; r < before_.rows(); ++r) {
        float const angle = static_cast<float>(position[r]) * frequency;
        float const cosine = std::cos(angle), sine = std::sin(angle);
        for (int of = 0; of < about_.layers * about_.q_heads; ++of) {
          float* const row = before_.row(of / about_.q_heads, of % about_.q_heads, r);
          float const a = row[i], b = row[i + half];
          row[i] = a * cosine + b * sine;
          row[i + half] = b * cosine - a * sine;
        }
      }
    }
  }

  void repeat(model& with, kv::host_executor& exec, prompt const& from, layout lay) {
    int const length = static_cast<int>(from.text.size());
    constexpr int most = request + chunk;
    session reader(with, exec, from, kv::policies::full(),
                   {.bound = length + most, .chunk = most, .decide = when::by_hand, .lay = lay});
    for (int begin = 0; begin < length; begin += chunk) {
      int const end = std::min(begin + chunk, length);
      std::vector<std::uint8_t> bytes(from.text.begin() + std::max(0, begin - request), from.text.begin() + end);
      if (begin == 0) bytes.insert(bytes.begin(), '\n');
      reader.prefill(bytes);
      keep(reader.queries(), reader.view());
      begin_.resize(static_cast<std::size_t>(again_.rows()), begin);
      end_.resize(static_cast<std::size_t>(again_.rows()), end);
      reader.truncate(length);
    }
  }

  /// Copies the queries and keys of the last forward.
  void keep(query_rows const& from, kv::cache const& cache) {
    auto const dims = static_cast<std::size_t>(about_.head_dim);
    int const rows = from.rows();
    int const first = again_.add(0, rows);
    for (int layer = 0; layer < about_.layers; ++layer) {
      for (int h = 0; h < about_.q_heads; ++h)
        std::copy_n(from.row(layer, h, 0), static_cast<std::size_t>(rows) * dims, again_.row(layer, h, first));
      for (int h = 0; h < about_.kv_heads; ++h) {
        kv::lane const lane{0, layer, h};
        int const before = cache.lanes.committed(lane) - rows;
        float* to = keys_.data() + ((layer * about_.kv_heads + h) * rows_ + first) * about_.head_dim;
        for (int r = 0; r < rows; ++r, to += dims) {
          kv::place const at = cache.where.at(lane, before + r);
          std::copy_n(reinterpret_cast<float const*>(cache.k.row(layer, at, h)), dims, to);
        }
      }
    }
  }

  config about_;
  int rows_;                      ///< of the whole repetition
  query_rows before_;             ///< the prompt's queries before RoPE
  query_rows again_;              ///< the queries of the repetition
  std::vector<float> keys_;       ///< [layer][KV head][row][D], those of the repetition
  std::vector<float> output_;     ///< [layer][width][query head * D]
  std::vector<int> begin_, end_;  ///< the entries that each row of the repetition is about
};

}  // namespace tinylm
