// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "basics.hpp"

namespace kvpolicy_reference {

/// One lane: the entries of one KV head, and the query rows of the query heads that share it.
struct lane_attention {
  matrix keys;                       ///< [entries][D]
  std::vector<int> key_positions;    ///< [entries]
  std::vector<matrix> queries;       ///< [G][rows][D]
  std::vector<int> query_positions;  ///< [rows], shared by the group
  double scale = 0;                  ///< of q . k; 0: 1 / sqrt(D)
  double soft_cap = 0;               ///< c: a scaled logit x becomes c tanh(x / c); 0: it stays
  row sinks{};                       ///< [G]: the logit of a column without an entry; empty: there is none
};

/// Which keys are inside the softmax. `past` leaves out the window's own columns: every entry at or after the first
/// row's position.
enum class key_domain { all, past };

/// What becomes one first. `group_on_logits` reduces the group before the softmax, the others after it.
enum class reduction_order { rows_then_group, group_then_rows, group_on_logits };

struct mass_options {
  key_domain domain = key_domain::all;
  reduction rows = reduction::sum;
  reduction group = reduction::mean;  ///< `last` has no meaning for a group and is refused
  reduction_order order = reduction_order::rows_then_group;
  std::function<double(std::size_t row, std::size_t rows, std::size_t entries)> weight{};  ///< of a row; none: 1
};

inline void check(lane_attention const& lane) {
  require(!lane.queries.empty(), "a lane without a query head");
  require(lane.keys.size() == lane.key_positions.size(), "one position for every key");
  for (matrix const& head : lane.queries) {
    require(head.size() == lane.query_positions.size(), "one position for every query row");
  }
}

/// visible[row][entry]: causal, and inside the key domain.
inline std::vector<std::vector<bool>> visibility(lane_attention const& lane, key_domain domain) {
  std::vector<std::vector<bool>> visible;
  for (int const query_position : lane.query_positions) {
    std::vector<bool> one;
    for (int const key_position : lane.key_positions) {
      bool const causal = key_position <= query_position;
      bool const inside = domain == key_domain::all || key_position < lane.query_positions.front();
      one.push_back(causal && inside);
    }
    visible.push_back(one);
  }
  return visible;
}

/// One logit: scaled, then capped.
inline double attention_logit(lane_attention const& lane, row const& query, row const& key) {
  double const channels = static_cast<double>(query.size());
  double const scaled = lane.scale == 0 ? dot(query, key) / std::sqrt(channels) : dot(query, key) * lane.scale;
  return lane.soft_cap == 0 ? scaled : lane.soft_cap * std::tanh(scaled / lane.soft_cap);
}

/// logits[head][row][entry], of every pair, visible or not.
inline std::vector<matrix> attention_logits(lane_attention const& lane) {
  std::vector<matrix> logits;
  for (matrix const& head : lane.queries) {
    matrix of_head;
    for (row const& query : head) {
      row of_row;
      for (row const& key : lane.keys) of_row.push_back(attention_logit(lane, query, key));
      of_head.push_back(of_row);
    }
    logits.push_back(of_head);
  }
  return logits;
}

/// One value per entry from logits of every row and head, whatever their positions.
inline row reduced_logits(lane_attention const& lane, reduction rows, reduction group, bool rows_first) {
  std::size_t const width = lane.keys.size();
  std::vector<matrix> const logits = attention_logits(lane);
  std::size_t const count = logits.empty() ? 0 : logits[0].size();
  if (count == 0) return row(width, 0.0);
  matrix parts;
  for (std::size_t i = 0; i < (rows_first ? logits.size() : count); ++i) {
    matrix heads;
    for (matrix const& head : logits) heads.push_back(head[rows_first ? 0 : i]);
    parts.push_back(rows_first ? reduced(logits[i], rows, width) : reduced(heads, group, width));
  }
  return reduced(parts, rows_first ? group : rows, width);
}

/// Softmax over the visible entries and the sink; other entries weigh exactly 0. A row that sees nothing gives zeros,
/// one that sees a NaN logit gives NaN for everything it sees. (So does one whose visible logits are all -inf, or hold
/// +inf: 0/0.)
inline row softmax(row const& logits, std::vector<bool> const& visible, double sink = -infinity) {
  double highest = sink;
  for (std::size_t j = 0; j < logits.size(); ++j) {
    if (visible[j]) highest = larger(highest, logits[j]);
  }
  row weights(logits.size(), 0.0);
  double total = sink == -infinity ? 0.0 : std::exp(sink - highest);
  for (std::size_t j = 0; j < logits.size(); ++j) {
    if (!visible[j]) continue;
    weights[j] = std::exp(logits[j] - highest);
    total += weights[j];
  }
  for (std::size_t j = 0; j < logits.size(); ++j) {
    if (visible[j]) weights[j] /= total;
  }
  return weights;
}

/// logits[row][entry] with the group reduced: what a method that reduces before the softmax puts into it.
inline matrix group_logits(lane_attention const& lane, reduction group) {
  std::vector<matrix> const logits = attention_logits(lane);
  matrix result;
  for (std::size_t i = 0; i < lane.query_positions.size(); ++i) {
    matrix of_heads;
    for (matrix const& head : logits) of_heads.push_back(head[i]);
    result.push_back(reduced(of_heads, group, lane.keys.size()));
  }
  return result;
}

/// The sink of each head, or the one that is left when the group is reduced before the softmax.
inline row softmax_sinks(lane_attention const& lane, mass_options const& options) {
  if (lane.sinks.empty()) return row(lane.queries.size(), -infinity);
  if (options.order != reduction_order::group_on_logits) return lane.sinks;
  matrix of_heads;
  for (double const sink : lane.sinks) of_heads.push_back({sink});
  return reduced(of_heads, options.group, 1);
}

/// weights[head][row][entry]: the rows of attention; with `group_on_logits` there is one head left.
inline std::vector<matrix> attention_weights(lane_attention const& lane, mass_options const& options) {
  check(lane);
  bool const early = options.order == reduction_order::group_on_logits;
  std::vector<matrix> const logits =
      early ? std::vector<matrix>{group_logits(lane, options.group)} : attention_logits(lane);
  std::vector<std::vector<bool>> const visible = visibility(lane, options.domain);
  row const sinks = softmax_sinks(lane, options);
  std::vector<matrix> weights;
  for (std::size_t h = 0; h < logits.size(); ++h) {
    matrix of_head;
    for (std::size_t i = 0; i < logits[h].size(); ++i) of_head.push_back(softmax(logits[h][i], visible[i], sinks[h]));
    weights.push_back(of_head);
  }
  return weights;
}

/// One value per entry from weights[head][row][entry]. A row that does not see an entry takes part with weight 0.
inline row reduced_weights(std::vector<matrix> const& weights, mass_options const& options, std::size_t entries) {
  require(options.group != reduction::last, "a group has no last head");
  matrix partial;
  if (options.order == reduction_order::rows_then_group) {
    for (matrix const& head : weights) partial.push_back(reduced(head, options.rows, entries));
    return reduced(partial, options.group, entries);
  }
  if (options.order == reduction_order::group_on_logits) {
    require(weights.size() == 1, "the group was reduced before the softmax");
    return reduced(weights.front(), options.rows, entries);
  }
  std::size_t const rows = weights.empty() ? 0 : weights.front().size();
  for (std::size_t i = 0; i < rows; ++i) {
    matrix of_heads;
    for (matrix const& head : weights) of_heads.push_back(head[i]);
    partial.push_back(reduced(of_heads, options.group, entries));
  }
  return reduced(partial, options.rows, entries);
}

/// The attention that each entry of the lane receives from the query rows.
inline row attention_mass(lane_attention const& lane, mass_options const& options) {
  require(options.group != reduction::last, "a group has no last head");
  std::vector<matrix> weights = attention_weights(lane, options);
  for (matrix& head : weights) {
    for (std::size_t r = 0; r < head.size() && options.weight; ++r) {
      bool const one = options.rows == reduction::last;  // the last row is the only one then
      double const factor = options.weight(one ? 0 : r, one ? 1 : head.size(), lane.keys.size());
      for (double& each : head[r]) each *= factor;
    }
  }
  return reduced_weights(weights, options, lane.keys.size());
}

/// How the probabilities of one query head differ from row to row, for each entry before the first of the last rows.
struct attention_moments {
  row mean, variance, entropy;
};
inline attention_moments moments_of_head(lane_attention const& lane, std::size_t head, int last_rows) {
  matrix const all = attention_weights(lane, {})[head];
  std::size_t const entries = lane.keys.size();
  attention_moments made{row(entries, 0.0), row(entries, 0.0), row(entries, 0.0)};
  std::size_t const rows = last_rows > 0 ? std::min(all.size(), static_cast<std::size_t>(last_rows)) : all.size();
  std::size_t const first = all.size() - rows;
  if (rows == 0) return made;
  for (std::size_t j = 0; j < entries; ++j) {
    if (lane.key_positions[j] >= lane.query_positions[first]) continue;
    for (std::size_t r = first; r < all.size(); ++r) {
      made.mean[j] += all[r][j] / static_cast<double>(rows);
      made.entropy[j] -= all[r][j] * std::log(all[r][j] + 1e-10);
    }
    for (std::size_t r = first; r < all.size() && rows > 1; ++r) {
      made.variance[j] += std::pow(all[r][j] - made.mean[j], 2) / static_cast<double>(rows - 1);
    }
  }
  return made;
}

}  // namespace kvpolicy_reference
