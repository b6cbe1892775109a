// SPDX-License-Identifier: Apache-2.0
// Moments of queries, and what Expected Attention makes of them.
#pragma once

#include "basics.hpp"
#include "rope.hpp"

namespace kvpolicy_reference {

/// A mean row, and the covariance of its channels.
struct moments {
  row mean;
  matrix square;
};

/// Those of rows of `width` channels, which divide by their number. No rows give zeros.
inline moments moments_of(matrix const& rows, std::size_t width) {
  moments made{row(width, 0.0), matrix(width, row(width, 0.0))};
  double const share = rows.empty() ? 0 : 1 / static_cast<double>(rows.size());
  for (row const& one : rows) {
    for (std::size_t d = 0; d < width; ++d) made.mean[d] += one[d] * share;
  }
  for (row const& one : rows) {
    for (std::size_t a = 0; a < width; ++a) {
      for (std::size_t b = 0; b < width; ++b) {
        made.square[a][b] += (one[a] - made.mean[a]) * (one[b] - made.mean[b]) * share;
      }
    }
  }
  return made;
}

/// The mean of RoPE's matrices at positions newest + 1 ... newest + future, of the first `turned` of `width` channels;
/// the identity if `future` is 0. `how` is of the channels that turn.
inline matrix mean_rotation(rope const& how, std::size_t turned, std::size_t width, int newest, int future) {
  matrix made(width, row(width, 0.0));
  for (std::size_t column = 0; column < width; ++column) {
    if (column >= turned || future == 0) made[column][column] = 1;
    for (int p = 1; column < turned && p <= future; ++p) {
      row unit(turned, 0.0);
      unit[column] = 1;
      row const now = rotated(unit, newest + p, how);
      for (std::size_t d = 0; d < turned; ++d) made[d][column] += now[d] / future;
    }
  }
  return made;
}

/// The moments of rows that a matrix multiplies: R mean, and R square R^T.
inline moments turned(matrix const& by, moments const& of) {
  std::size_t const width = of.mean.size();
  moments made{row(width, 0.0), matrix(width, row(width, 0.0))};
  matrix half = made.square;
  for (std::size_t a = 0; a < width; ++a) {
    made.mean[a] = dot(by[a], of.mean);
    for (std::size_t b = 0; b < width; ++b) {
      for (std::size_t c = 0; c < width; ++c) half[a][b] += by[a][c] * of.square[c][b];
    }
  }
  for (std::size_t a = 0; a < width; ++a) {
    for (std::size_t b = 0; b < width; ++b) made.square[a][b] = dot(half[a], by[b]);
  }
  return made;
}

/// k^T S k
inline double quadratic_form(matrix const& square, row const& key) {
  double sum = 0;
  for (std::size_t a = 0; a < key.size(); ++a) sum += key[a] * dot(square[a], key);
  return sum;
}

/// What a query of these moments, after RoPE, is expected to draw from a key.
inline double expected_logit(moments const& of, row const& key, double scale, bool covariance) {
  double const square = covariance ? scale * scale / 2 * quadratic_form(of.square, key) : 0;
  return scale * dot(of.mean, key) + square;
}

}  // namespace kvpolicy_reference
