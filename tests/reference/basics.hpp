// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

/// The naive reference: the published equations in double precision, by the slowest obvious loops. It shares no code
/// with the library that it judges, and it favours being checkable by eye over everything else.
namespace kvpolicy_reference {

using row = std::vector<double>;
using matrix = std::vector<row>;

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// How many rows, heads or lanes become one.
enum class reduction { sum, mean, max, last };

inline void require(bool condition, std::string const& message) {
  if (!condition) throw std::invalid_argument("reference: " + message);
}

/// The larger of two numbers; a NaN on either side stays NaN, so that no maximum can hide one.
inline double larger(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return a < b ? b : a;
}

inline double dot(row const& a, row const& b) {
  require(a.size() == b.size(), "dot of rows of different lengths");
  double total = 0.0;
  for (std::size_t d = 0; d < a.size(); ++d) total += a[d] * b[d];
  return total;
}

/// Elementwise reduction of equally long rows to one row of `width` values; no rows at all give zeros.
inline row reduced(matrix const& rows, reduction how, std::size_t width) {
  row result(width, 0.0);
  if (rows.empty()) return result;
  if (how == reduction::last) return rows.back();
  for (std::size_t j = 0; j < width; ++j) {
    double sum = 0.0;
    double highest = -infinity;
    for (row const& one : rows) {
      sum += one.at(j);
      highest = larger(highest, one.at(j));
    }
    if (how == reduction::sum) result[j] = sum;
    if (how == reduction::mean) result[j] = sum / static_cast<double>(rows.size());
    if (how == reduction::max) result[j] = highest;
  }
  return result;
}

}  // namespace kvpolicy_reference
