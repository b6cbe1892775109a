// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention.hpp"
#include "basics.hpp"
#include "selection.hpp"

namespace kvpolicy_reference {

using head_rows = std::vector<matrix>;                   ///< [layers][heads][D]: one row a head
using head_matrices = std::vector<std::vector<matrix>>;  ///< [layers][heads][rows][D]

// --- The query memory ------------------------------------------------------------------------------------------------

inline row plus(row const& a, row const& b, double times = 1.0) {
  require(a.size() == b.size(), "sum of rows of different lengths");
  row result = a;
  for (std::size_t d = 0; d < b.size(); ++d) result[d] += times * b[d];
  return result;
}

/// v / |v|; a row of zeros stays zeros.
inline row unit(row const& v) {
  double const length = std::sqrt(dot(v, v));
  return length == 0.0 ? v : plus(row(v.size(), 0.0), v, 1.0 / length);
}

/// M = 0: before the first turn.
inline head_rows no_memory(std::size_t layers, std::size_t heads, std::size_t dims) {
  return head_rows(layers, matrix(heads, row(dims, 0.0)));
}

/// What becomes of the memory when a turn comes.
struct memory_options {
  double lambda = 0.5;
  bool normalize_encoding = false;
  bool forgets = false;  ///< the `query` mode: earlier turns count for nothing
};

/// M <- unit(e^-lambda M + Enc), Enc = mean of the span's rows; `span` is [layers][query heads][rows][D]. A span
/// without rows leaves M as it was.
inline head_rows remembered(head_rows memory, head_matrices const& span, memory_options const& how) {
  for (std::size_t l = 0; l < memory.size(); ++l) {
    for (std::size_t h = 0; h < memory[l].size(); ++h) {
      matrix const& rows = span.at(l).at(h);
      if (rows.empty()) continue;
      row const mean = reduced(rows, reduction::mean, memory[l][h].size());
      row const encoding = how.normalize_encoding ? unit(mean) : mean;
      double const kept = how.forgets ? 0.0 : std::exp(-how.lambda);
      memory[l][h] = unit(plus(encoding, memory[l][h], kept));
    }
  }
  return memory;
}

// --- The rule --------------------------------------------------------------------------------------------------------

/// rule_j = sum over layers and query heads of the softmax of M.K / sqrt(D) over the candidates alone; 0 for the
/// others. `keys` is [layers][KV heads][entries][D], of live entries only.
inline row rule_scores(head_rows const& memory, head_matrices const& keys, flags const& forced) {
  row rule(forced.size(), 0.0);
  flags candidate = forced;
  candidate.flip();
  for (std::size_t l = 0; l < memory.size(); ++l) {
    std::size_t const group = memory[l].size() / keys.at(l).size();
    for (std::size_t h = 0; h < memory[l].size(); ++h) {
      row logits;
      for (row const& key : keys[l][h / group])
        logits.push_back(dot(memory[l][h], key) / std::sqrt(static_cast<double>(key.size())));
      rule = plus(rule, softmax(logits, candidate));
    }
  }
  return rule;
}

// --- The residual head -----------------------------------------------------------------------------------------------

struct linear {
  matrix weight;  ///< [out][in]
  row bias;       ///< [out]
  [[nodiscard]] row operator()(row const& x) const {
    require(weight.size() == bias.size(), "a bias for every row of the weight");
    row y = bias;
    for (std::size_t o = 0; o < y.size(); ++o) y[o] += dot(weight[o], x);
    return y;
  }
};

struct residual_weights {
  linear w_q, w_k, w_v;  ///< 3D + 1, D, D -> d_c
  linear fc1, fc2;       ///< 3D + 1 + d_c -> h -> 1
  double alpha = 1.0;
};

/// Parameters of a head, from its layers; 214,274 for D = 128, d_c = 128, h = 256.
inline std::size_t parameters(residual_weights const& head) {
  std::size_t total = 1;  // alpha
  for (linear const* one : {&head.w_q, &head.w_k, &head.w_v, &head.fc1, &head.fc2}) {
    total += one->bias.size() + one->weight.size() * one->weight.at(0).size();
  }
  return total;
}

inline row joined(row a, row const& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// GELU in the erf form.
inline double gelu(double x) { return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))); }

/// Mean over layers and KV heads of the keys of each entry: [entries][D]. Query heads repeat each KV head equally.
inline matrix mean_keys(head_matrices const& keys) {
  matrix result;
  for (std::size_t j = 0; j < keys.at(0).at(0).size(); ++j) {
    matrix each;
    for (auto const& layer : keys) {
      for (matrix const& head : layer) each.push_back(head.at(j));
    }
    result.push_back(reduced(each, reduction::mean, each.at(0).size()));
  }
  return result;
}

inline row mean_memory(head_rows const& memory) {
  matrix each;
  for (matrix const& layer : memory) each.insert(each.end(), layer.begin(), layer.end());
  return reduced(each, reduction::mean, each.at(0).size());
}

/// phi_j = [k | m | k * m | rule_j].
inline row features(row const& key, row const& memory, double rule) {
  row product = key;
  for (std::size_t d = 0; d < product.size(); ++d) product[d] *= memory[d];
  row phi = joined(joined(key, memory), product);
  phi.push_back(rule);
  return phi;
}

/// Attention of one row to the mean keys of the span, in 4 heads, without an output projection. No span: zeros.
inline row cross_attention(residual_weights const& head, row const& phi, matrix const& span_keys) {
  std::size_t const heads = 4, width = head.w_q.bias.size(), each = width / heads;
  require(width % heads == 0, "four heads of equal width");
  row context(width, 0.0);
  if (span_keys.empty()) return context;
  row const query = head.w_q(phi);
  for (std::size_t h = 0; h < heads; ++h) {
    row logits;
    for (row const& span_key : span_keys) {
      row const key = head.w_k(span_key);
      double total = 0.0;
      for (std::size_t d = h * each; d < (h + 1) * each; ++d) total += query[d] * key[d];
      logits.push_back(total / std::sqrt(static_cast<double>(each)));
    }
    row const weights = softmax(logits, flags(logits.size(), true));
    for (std::size_t i = 0; i < span_keys.size(); ++i) {
      row const value = head.w_v(span_keys[i]);
      for (std::size_t d = h * each; d < (h + 1) * each; ++d) context[d] += weights[i] * value[d];
    }
  }
  return context;
}

/// MLP(phi ++ context).
inline double mlp(residual_weights const& head, row const& phi, row const& context) {
  row hidden = head.fc1(joined(phi, context));
  for (double& x : hidden) x = gelu(x);
  return head.fc2(hidden).at(0);
}

/// s_j = rule_j + alpha MLP(phi_j ++ c_j), alpha clipped to +-5, for the candidates. `in_span` marks the live entries
/// of the span.
inline row learned_scores(row const& rule, head_rows const& memory, head_matrices const& keys, flags const& forced,
                          flags const& in_span, residual_weights const& head) {
  matrix const mean = mean_keys(keys);
  matrix span_keys;
  for (std::size_t j = 0; j < mean.size(); ++j) {
    if (in_span[j]) span_keys.push_back(mean[j]);
  }
  double const alpha = std::clamp(head.alpha, -5.0, 5.0);
  row const of_memory = mean_memory(memory);
  row scores = rule;
  for (std::size_t j = 0; j < scores.size(); ++j) {
    if (forced[j]) continue;
    row const phi = features(mean[j], of_memory, rule[j]);
    scores[j] += alpha * mlp(head, phi, cross_attention(head, phi, span_keys));
  }
  return scores;
}

// --- The decision ----------------------------------------------------------------------------------------------------

/// One sequence at the end of a turn: its live entries, and the span's positions [span_begin, span_end).
struct intent_sequence {
  head_matrices keys;          ///< [layers][KV heads][live entries][D]
  std::vector<int> positions;  ///< [live entries]
  int span_begin = 0;
  int span_end = 0;
};

struct intent_options {
  int budget = 0;
  int prefix = 0;                              ///< positions [0, prefix) are forced
  int min_growth = 0;                          ///< live entries above the budget that are worth a decision; 0 is as 1
  residual_weights const* residual = nullptr;  ///< the `learnable` mode
  bool cross_attention = true;                 ///< of the residual; without it the context is zeros
};

/// Entries whose position is in [begin, end).
inline flags positions_in(std::vector<int> const& positions, int begin, int end) {
  flags result;
  for (int const position : positions) result.push_back(begin <= position && position < end);
  return result;
}

inline flags forced_by(intent_sequence const& of, int prefix) {
  flags result = positions_in(of.positions, of.span_begin, of.span_end);
  for (std::size_t j = 0; j < result.size(); ++j) result[j] = result[j] || of.positions[j] < prefix;
  return result;
}

struct intent_decision {
  row scores;  ///< forced entries: 0, nobody reads them
  flags forced;
  selection result;
};

/// IntentKV: one decision for all layers and heads. Forced are the protected prefix and the span; the best of the
/// others fill the budget.
inline intent_decision intent_kv(intent_sequence const& of, head_rows const& memory, intent_options const& how) {
  intent_decision made{.scores = {}, .forced = forced_by(of, how.prefix), .result = {}};
  made.scores = rule_scores(memory, of.keys, made.forced);
  if (how.residual != nullptr) {
    int const span_end = how.cross_attention ? of.span_end : of.span_begin;
    flags const span = positions_in(of.positions, of.span_begin, span_end);
    made.scores = learned_scores(made.scores, memory, of.keys, made.forced, span, *how.residual);
  }
  made.result = select(made.scores, made.forced, how.budget, std::max(0, how.min_growth - 1));
  return made;
}

}  // namespace kvpolicy_reference
