// SPDX-License-Identifier: Apache-2.0
// Leverages of rows, sketches that are drawn, and attention inside of chunks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention.hpp"
#include "basics.hpp"

namespace kvpolicy_reference {

/// A number in [0, 1) of 24 bits: SplitMix64 folds in one number after the other.
inline double uniform_of(std::vector<std::uint64_t> const& numbers) {
  std::uint64_t state = 0;
  for (std::uint64_t const each : numbers) {
    std::uint64_t z = (state ^ each) + 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    state = z ^ (z >> 31);
  }
  return static_cast<double>(state >> 40) / 16777216.0;
}

/// A sketch of independent normal numbers over the square root of its columns, by the method of Box and Muller.
inline matrix drawn_sketch(std::uint64_t seed, int layer, int head, std::size_t rows, std::size_t columns) {
  matrix made(rows, row(columns, 0.0));
  double const pi = std::acos(-1.0);
  for (std::size_t d = 0; d < rows; ++d) {
    for (std::size_t c = 0; c < columns; ++c) {
      auto const draw = [&](std::uint64_t which) {
        return uniform_of({seed, 0, static_cast<std::uint64_t>(layer), static_cast<std::uint64_t>(head),
                           2 * (d * columns + c) + which});
      };
      double const normal = std::sqrt(-2 * std::log(1 - draw(0))) * std::cos(2 * pi * draw(1));
      made[d][c] = normal / std::sqrt(static_cast<double>(columns));
    }
  }
  return made;
}

inline matrix product(matrix const& rows, matrix const& by) {
  matrix made;
  for (row const& one : rows) {
    row& to = made.emplace_back(by.empty() ? 0 : by[0].size(), 0.0);
    for (std::size_t d = 0; d < one.size(); ++d) {
      for (std::size_t c = 0; c < to.size(); ++c) to[c] += one[d] * by[d][c];
    }
  }
  return made;
}

/// Rows less their weighted mean.
inline matrix centred(matrix rows, row const& weights) {
  double all = 0;
  for (double const each : weights) all += each;
  row mean(rows.empty() ? 0 : rows[0].size(), 0.0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t d = 0; d < mean.size(); ++d) mean[d] += weights[i] * rows[i][d] / (all > 0 ? all : 1);
  }
  for (row& one : rows) {
    for (std::size_t d = 0; d < mean.size(); ++d) one[d] -= mean[d];
  }
  return rows;
}

/// The solutions of a square system for some right sides, by Gauss's elimination with pivots.
inline matrix solved(matrix of, matrix rights) {
  std::size_t const size = of.size();
  for (std::size_t c = 0; c < size; ++c) {
    std::size_t best = c;
    for (std::size_t i = c; i < size; ++i) best = std::fabs(of[i][c]) > std::fabs(of[best][c]) ? i : best;
    std::swap(of[c], of[best]);
    for (row& right : rights) std::swap(right[c], right[best]);
    for (std::size_t i = c + 1; i < size; ++i) {
      double const factor = of[i][c] / of[c][c];
      for (std::size_t j = c; j < size; ++j) of[i][j] -= factor * of[c][j];
      for (row& right : rights) right[i] -= factor * right[c];
    }
  }
  for (row& right : rights) {
    for (std::size_t c = size; c-- > 0;) {
      for (std::size_t j = c + 1; j < size; ++j) right[c] -= of[c][j] * right[j];
      right[c] /= of[c][c];
    }
  }
  return rights;
}

/// w_j x_j (jitter I + sum of (w_j + more) x_j^T x_j)^-1 x_j^T of each row x_j.
inline row weighted_leverages(matrix const& rows, row const& weights, double more, double jitter) {
  std::size_t const width = rows.empty() ? 0 : rows[0].size();
  matrix gram(width, row(width, 0.0));
  for (std::size_t d = 0; d < width; ++d) gram[d][d] = jitter;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t a = 0; a < width; ++a) {
      for (std::size_t b = 0; b < width; ++b) gram[a][b] += (weights[i] + more) * rows[i][a] * rows[i][b];
    }
  }
  matrix const solutions = solved(gram, rows);
  row made;
  for (std::size_t i = 0; i < rows.size(); ++i) made.push_back(weights[i] * dot(rows[i], solutions[i]));
  return made;
}

/// (x - mean) over the deviation of all numbers, whose divisor is one less than their number.
inline matrix sample_z_scores(matrix of) {
  double sum = 0, squares = 0, count = 0;
  for (row const& one : of) {
    for (double const x : one) sum += x, ++count;
  }
  for (row const& one : of) {
    for (double const x : one) squares += (x - sum / count) * (x - sum / count);
  }
  double const deviation = count > 1 ? std::sqrt(squares / (count - 1)) : 0;
  for (row& one : of) {
    for (double& x : one) x = (x - sum / count) / std::max(deviation, 1e-6);
  }
  return of;
}

/// The sum over heads and over the rows of a chunk of what they give to an entry of it, where rows see the whole chunk.
/// The last rows are those of the last entries; chunks begin behind `first` entries and end before the last `last`. A
/// `padded` chunk that is too short, and that rows are about, has zeros for its missing keys and rows.
inline row chunk_attention(lane_attention const& lane, std::size_t size, std::size_t first, std::size_t last,
                           bool padded) {
  std::size_t const count = lane.keys.size(), end = count > last ? count - last : 0;
  row made(count, 0.0);
  for (std::size_t begin = first; begin < end; begin += size) {
    std::size_t const some = std::min(size, end - begin), missing = padded ? size - some : 0;
    for (std::size_t h = 0; h < lane.queries.size(); ++h) {
      matrix const& rows = lane.queries[h];
      double const sink = lane.sinks.empty() ? -infinity : lane.sinks[h];
      auto const add = [&](row const* query) {
        row logits;
        for (std::size_t e = begin; e < begin + some; ++e) {
          logits.push_back(query == nullptr ? 0 : attention_logit(lane, *query, lane.keys[e]));
        }
        for (std::size_t i = 0; i < missing; ++i) logits.push_back(-1e-9);
        row const p = softmax(logits, std::vector<bool>(logits.size(), true), sink);
        for (std::size_t e = 0; e < some; ++e) made[begin + e] += p[e];
      };
      for (std::size_t e = begin; e < begin + some; ++e) {
        if (e + rows.size() >= count) add(&rows[e + rows.size() - count]);
      }
      for (std::size_t i = 0; i < missing && begin + some + rows.size() > count; ++i) add(nullptr);
    }
  }
  return made;
}

}  // namespace kvpolicy_reference
