// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention.hpp"
#include "basics.hpp"
#include "pooling.hpp"
#include "selection.hpp"

namespace kvpolicy_reference {

/// The scores that a method gave, and what it kept because of them.
struct decision {
  row scores;
  selection result;
};

// --- Norms -----------------------------------------------------------------------------------------------------------

inline row row_norms(matrix const& rows) {
  row result;
  for (row const& one : rows) result.push_back(std::sqrt(dot(one, one)));
  return result;
}

/// Knorm: keys of small norm draw attention, so the score is -|k|. Nothing is forced.
inline row knorm_scores(matrix const& keys) {
  row result;
  for (double const norm : row_norms(keys)) result.push_back(-norm);
  return result;
}

/// How long values are after the output projection: the mean over query heads of ||W_h v||, where a row of W_h makes
/// one channel of the output.
inline row projected_norms(matrix const& values, std::vector<matrix> const& heads, bool l1) {
  row result;
  for (row const& value : values) {
    double mean = 0;
    for (matrix const& head : heads) {
      double sum = 0;
      for (row const& channel : head) sum += l1 ? std::fabs(dot(channel, value)) : std::pow(dot(channel, value), 2);
      mean += (l1 ? sum : std::sqrt(sum)) / static_cast<double>(heads.size());
    }
    result.push_back(mean);
  }
  return result;
}

/// CriticalKV: the best entries by score have +inf, as many as the part `first` of the budget has besides forced ones;
/// the others have (s + epsilon) times their norm. What a forced entry has does not count.
inline row critical_scores(row const& scores, row const& norms, flags const& forced, double first, double epsilon,
                           int budget) {
  int const places = first > 0 ? std::max(1, static_cast<int>(first * budget)) : 0;
  int const all = static_cast<int>(scores.size()), most = std::min(places, budget);
  flags put_first(scores.size(), most >= all);
  if (most < all) {
    for (int const e : select(scores, forced, most).kept) put_first[static_cast<std::size_t>(e)] = true;
  }
  row result;
  for (std::size_t e = 0; e < scores.size(); ++e) {
    result.push_back(put_first[e] ? infinity : (scores[e] + epsilon) * norms[e]);
  }
  return result;
}

/// The mean of rows, as they are or each divided by its norm, and then as it is or divided by its own. A row of zeros
/// stays; no rows give zeros.
inline row mean_row(matrix const& rows, bool unit, bool unit_mean, std::size_t width) {
  row const norms = row_norms(rows);
  row mean(width, 0.0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t d = 0; d < width; ++d) {
      double const shrink = unit && norms[i] > 0 ? norms[i] : 1;
      mean[d] += rows[i][d] / shrink / static_cast<double>(rows.size());
    }
  }
  double const norm = std::sqrt(dot(mean, mean));
  for (double& each : mean) each /= unit_mean && norm > 0 ? norm : 1;
  return mean;
}

/// KeyDiff: the less a key points where keys point on average, the better: -cos(k, mean of k/|k|). The cosine of a row
/// of zeros is 0.
inline row keydiff_scores(matrix const& keys) {
  row result;
  row const anchor = mean_row(keys, true, false, keys.empty() ? 0 : keys[0].size());
  for (row const& key : keys) {
    double const norms = std::sqrt(dot(key, key) * dot(anchor, anchor));
    result.push_back(norms > 0 ? -dot(key, anchor) / norms : 0);
  }
  return result;
}

/// The shares of LagKV: of each entry of a block that has a next one, the softmax over the block of the standard
/// deviation over channels of (x - min) / (max - min), whose bounds are those of the next block. Other entries have 0.
/// `size` becomes the largest such quotient.
inline row lag_shares(matrix const& rows, std::size_t lag, std::size_t first, double& size) {
  row result(rows.size(), 0.0);
  for (std::size_t begin = first; begin + 2 * lag <= rows.size(); begin += lag) {
    std::size_t const width = rows[begin].size();
    double sum = 0;
    row spreads;
    for (std::size_t e = begin; e < begin + lag; ++e) {
      row z;
      for (std::size_t d = 0; d < width; ++d) {
        double low = infinity, high = -infinity;
        for (std::size_t r = begin + lag; r < begin + 2 * lag; ++r) {
          low = std::min(low, rows[r][d]);
          high = std::max(high, rows[r][d]);
        }
        z.push_back(high > low ? (rows[e][d] - low) / (high - low) : 0);
        size = std::max(size, std::fabs(z.back()));
      }
      double mean = 0, squares = 0;
      for (double const each : z) mean += each / static_cast<double>(width);
      for (double const each : z) squares += (each - mean) * (each - mean);
      spreads.push_back(width > 1 ? std::sqrt(squares / static_cast<double>(width - 1)) : 0);
    }
    double const most = *std::max_element(spreads.begin(), spreads.end());
    for (double const each : spreads) sum += std::exp(each - most);
    for (std::size_t e = 0; e < lag; ++e) result[begin + e] = std::exp(spreads[e] - most) / sum;
  }
  return result;
}

/// The part of the entries [begin, end) of scores that is worse than entry `mine`; of equal ones the later is worse.
inline double rank_among(row const& scores, std::size_t begin, std::size_t end, std::size_t mine) {
  int worse = 0;
  for (std::size_t e = begin; e < end; ++e) {
    worse += scores[e] < scores[mine] || (scores[e] == scores[mine] && e > mine) ? 1 : 0;
  }
  return static_cast<double>(worse) / static_cast<double>(end - begin);
}

/// CurDKV's leverages of rows: squares of norms, each over the sum of its block's, or as they are where a block has 0
/// entries. 0 / 0 is 0.
inline row leverages(matrix const& rows, std::size_t block) {
  row result;
  for (row const& one : rows) result.push_back(dot(one, one));
  for (std::size_t begin = 0; block > 0 && begin < result.size(); begin += block) {
    std::size_t const end = std::min(begin + block, result.size());
    double sum = 0;
    for (std::size_t e = begin; e < end; ++e) sum += result[e];
    for (std::size_t e = begin; e < end; ++e) result[e] = sum > 0 ? result[e] / sum : 0;
  }
  return result;
}

/// The similarity of the entries that compete: the mean over rows i of cos(k_i, k_j), where it is not below the mean of
/// row i; that of an entry with itself is 0. `margin` becomes the least distance of a cosine to its row's mean.
inline row similarity(matrix const& keys, std::vector<bool> const& competes, double& margin) {
  row const norms = row_norms(keys);
  std::vector<std::size_t> among;
  for (std::size_t e = 0; e < keys.size(); ++e) {
    if (competes[e]) among.push_back(e);
  }
  row result(keys.size(), -infinity);
  for (std::size_t const j : among) result[j] = 0;
  for (std::size_t const i : among) {
    row cosines(keys.size(), 0.0);
    double mean = 0;
    for (std::size_t const j : among) {
      if (i != j && norms[i] > 0 && norms[j] > 0) cosines[j] = dot(keys[i], keys[j]) / (norms[i] * norms[j]);
      mean += cosines[j] / static_cast<double>(among.size());
    }
    for (std::size_t const j : among) {
      if (i != j && cosines[j] != 0) margin = std::min(margin, std::fabs(cosines[j] - mean));
      if (!(cosines[j] < mean)) result[j] += cosines[j] / static_cast<double>(among.size());
    }
  }
  return result;
}

// --- StreamingLLM ----------------------------------------------------------------------------------------------------

/// StreamingLLM: the first `sinks` and the last `recent` entries, strictly above sinks + recent (+ slack). With
/// `incoming` > 0 it makes room for a turn of that many tokens: if count + incoming is too much, the window gives up
/// `incoming` of its oldest entries, or all of them.
inline std::vector<int> streaming_llm_keep(int count, int sinks, int recent, int incoming = 0, int slack = 0) {
  require(count >= 0 && sinks >= 0 && recent >= 0 && incoming >= 0 && slack >= 0, "StreamingLLM takes counts");
  bool const over = count + incoming > sinks + recent + slack;
  std::vector<int> kept;
  for (int j = 0; j < count; ++j) {
    if (!over || j < sinks || j >= count - recent + incoming) kept.push_back(j);
  }
  return kept;
}

// --- SnapKV ----------------------------------------------------------------------------------------------------------

struct snapkv_options {
  int window = 32;   ///< W: the last query rows look, the last entries are forced
  int budget = 320;  ///< entries kept in all, the window's included
  pooling pool = {};
  mass_options mass = {};  ///< defaults: all keys in the softmax, rows summed, then the mean of the group
  int slack = 0;
};

/// The lane with its last `window` query rows only (all of them, if there are fewer).
inline lane_attention last_rows(lane_attention lane, int window) {
  int const rows = static_cast<int>(lane.query_positions.size());
  int const skipped = std::max(0, rows - window);
  for (matrix& head : lane.queries) head.erase(head.begin(), head.begin() + skipped);
  lane.query_positions.erase(lane.query_positions.begin(), lane.query_positions.begin() + skipped);
  return lane;
}

/// SnapKV: attention mass of the window's rows, pooled over the prefix. Scores of the window's own entries are their
/// unpooled mass; they are forced, so nobody reads them.
inline decision snapkv(lane_attention const& lane, snapkv_options const& options) {
  require(options.window >= 1, "SnapKV needs a window to look from");
  check(lane);
  int const count = static_cast<int>(lane.keys.size());
  row const mass = attention_mass(last_rows(lane, options.window), options.mass);
  row const scores = pooled(mass, options.pool, options.window);
  return {scores, select(scores, ends(count, 0, options.window), options.budget, options.slack)};
}

// --- R-KV ------------------------------------------------------------------------------------------------------------

/// R-KV's redundancy before its softmax: the mean over i of cos(k_i, k_j). Left out are i = j, and, with
/// `spare_newest`, for each i the last entry that is similar to it, or the first entry where none is.
inline row redundancy(matrix const& keys, double threshold, bool spare_newest) {
  std::size_t const count = keys.size();
  row const norms = row_norms(keys);
  row result(count, 0.0);
  for (std::size_t i = 0; i < count; ++i) {
    row cosines(count, 0.0);
    for (std::size_t j = 0; j < count; ++j) {
      if (i != j) cosines[j] = dot(keys[i], keys[j]) / ((norms[i] + 1e-8) * (norms[j] + 1e-8));
    }
    std::size_t spared = 0;
    for (std::size_t j = 0; j < count; ++j) spared = cosines[j] > threshold ? j : spared;
    if (spare_newest) cosines[spared] = 0;
    for (std::size_t j = 0; j < count; ++j) result[j] += cosines[j] / static_cast<double>(count);
  }
  return result;
}

inline row softmax_of(row const& values) {
  double const most = *std::max_element(values.begin(), values.end());
  row result;
  double sum = 0;
  for (double const each : values) result.push_back(std::exp(each - most)), sum += result.back();
  for (double& each : result) each /= sum;
  return result;
}

struct r_kv_options {
  int window = 8;
  double lambda = 0.07;
  pooling pool = {};
  double threshold = 0.5;
  bool spare_newest = true;
};

/// R-KV: importance, which is SnapKV's with the group's largest logit and a softmax over the prefix alone, less
/// redundancy.
inline row r_kv_scores(lane_attention const& lane, r_kv_options const& options) {
  check(lane);
  mass_options const mass{.domain = key_domain::past,
                          .rows = reduction::mean,
                          .group = reduction::max,
                          .order = reduction_order::group_on_logits};
  row result = pooled(attention_mass(last_rows(lane, options.window), mass), options.pool, options.window);
  row const redundant = softmax_of(redundancy(lane.keys, options.threshold, options.spare_newest));
  for (std::size_t j = 0; j < result.size(); ++j) {
    result[j] = options.lambda * result[j] - (1 - options.lambda) * redundant[j];
  }
  return result;
}

// --- TriAttention ----------------------------------------------------------------------------------------------------

/// TriAttention of one query head: what a query of that mean draws from keys at distances 1, 2, 4, ... from `now`, by
/// the authors' sum of cosines, from keys as they were before RoPE. Pairs are (f, f + D / 2), and turn by turns[f].
struct tri_attention_head {
  row mean;    ///< [D], before RoPE
  row radius;  ///< [D / 2]
  row turns;   ///< [D / 2] radians a position
  int offsets = 17;
  bool highest = false;  ///< over distances; else their mean

  [[nodiscard]] double score(row const& key_before_rope, double position, double now) const {
    std::size_t const pairs = turns.size();
    double sum = 0, most = -infinity, extra = 0;
    for (int i = 0; i < offsets; ++i) {
      double one = 0;
      for (std::size_t f = 0; f < pairs; ++f) {
        double const q = std::hypot(mean[f], mean[f + pairs]),
                     k = std::hypot(key_before_rope[f], key_before_rope[f + pairs]);
        double const apart =
            std::atan2(mean[f + pairs], mean[f]) - std::atan2(key_before_rope[f + pairs], key_before_rope[f]);
        one += q * k * std::cos((now - position + std::ldexp(1.0, i)) * turns[f] + apart);
      }
      sum += one, most = std::max(most, one);
    }
    for (std::size_t f = 0; f < pairs; ++f) {
      double const k = std::hypot(key_before_rope[f], key_before_rope[f + pairs]);
      extra += (radius[f] - std::hypot(mean[f], mean[f + pairs])) * k;
    }
    return (highest ? most : sum / offsets) + extra;
  }
};

/// x - mean over the deviation, of those that count; the others are -inf.
inline row z_scores(row values, flags const& left_out) {
  double sum = 0, squares = 0, count = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!left_out[i]) sum += values[i], ++count;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!left_out[i]) squares += (values[i] - sum / count) * (values[i] - sum / count);
  }
  double const deviation = std::max(1e-6, std::sqrt(squares / count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = left_out[i] ? -infinity : (values[i] - sum / count) / deviation;
  return values;
}

// --- Methods that see the attention of single rows -------------------------------------------------------------------

/// [row][entry]: each row's softmax, reduced over the query heads of the group.
inline matrix rows_of_group(lane_attention const& lane, reduction group) {
  std::vector<matrix> const heads = attention_weights(lane, {});
  matrix result;
  for (std::size_t r = 0; r < lane.query_positions.size(); ++r) {
    matrix of_row;
    for (matrix const& head : heads) of_row.push_back(head[r]);
    result.push_back(reduced(of_row, group, lane.keys.size()));
  }
  return result;
}

/// Scissorhands: the sum of the last `history` rows.
inline row last_rows_of(matrix const& rows, int history) {
  row result(rows.empty() ? 0 : rows.front().size(), 0.0);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (r + static_cast<std::size_t>(history) < rows.size()) continue;
    for (std::size_t e = 0; e < result.size(); ++e) result[e] += rows[r][e];
  }
  return result;
}

/// keys_values: what all rows gave, each row's mass shared out in the measure of the values' norms if there are any,
/// and per position since the entry's own if `by_age`.
inline row received(matrix rows, row const& norms, std::vector<int> const& positions, bool by_age) {
  row result(positions.size(), 0.0);
  for (row& one : rows) {
    double given = 0, weighted = 0;
    for (std::size_t e = 0; e < one.size(); ++e) given += one[e], weighted += norms.empty() ? 0 : one[e] * norms[e];
    for (std::size_t e = 0; e < one.size(); ++e) {
      if (!norms.empty()) one[e] = weighted == 0 ? 0 : given * one[e] * norms[e] / weighted;
      result[e] += one[e];
    }
  }
  for (std::size_t e = 0; by_age && e < result.size(); ++e) result[e] /= positions.back() - positions[e] + 1;
  return result;
}

/// LazyEviction: when each entry was last attended to, and the longest time between two such rows.
struct stamped {
  std::vector<int> last, interval;
  explicit stamped(std::vector<int> const& positions) : last(positions), interval(positions.size(), 0) {}

  /// A row at a position, with what it gives to the entries that it sees.
  void see(row const& mass, int position, double alpha) {
    for (std::size_t e = 0; e < mass.size(); ++e) {
      if (mass[e] < alpha) continue;
      interval[e] = std::max(interval[e], position - last[e]);
      last[e] = position;
    }
  }
  [[nodiscard]] row scores(int now, bool product) const {
    row result;
    auto const twice_sigma = [](double x) { return 2 / (1 + std::exp(-x)); };
    for (std::size_t e = 0; e < last.size(); ++e) {
      double const longest = std::max(interval[e], 1);
      double const a = twice_sigma(-(now - last[e]) / longest), b = twice_sigma(-1 / longest);
      result.push_back(product ? a * b : a + b);
    }
    return result;
  }
};

// --- TOVA ------------------------------------------------------------------------------------------------------------

/// TOVA: one keep set for all lanes of a layer. The score is the mean over *all* query heads of the last row's
/// attention. The last entry has to earn its place, unless `force_last` (kvpress) protects it.
inline decision tova(std::vector<lane_attention> const& layer, int budget, bool force_last = false, int slack = 0) {
  require(!layer.empty(), "a layer has lanes");
  std::size_t const count = layer.front().keys.size();
  matrix of_heads;
  for (lane_attention const& lane : layer) {
    require(lane.key_positions == layer.front().key_positions, "the lanes of a layer hold the same positions");
    for (matrix const& head : attention_weights(lane, {})) of_heads.push_back(reduced(head, reduction::last, count));
  }
  row const scores = reduced(of_heads, reduction::mean, count);
  return {scores, select(scores, ends(static_cast<int>(count), 0, force_last ? 1 : 0), budget, slack)};
}

}  // namespace kvpolicy_reference
