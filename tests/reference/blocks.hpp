// SPDX-License-Identifier: Apache-2.0
// What stays of a lane whose entries stay or go in blocks, as POLICIES and the papers say it, in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

namespace kvpolicy_reference {

/// A lane of which blocks stay: by a number of entries, a ratio of dropped ones, or a part of the blocks that compete.
struct lane_of_blocks {
  std::vector<double> scores;
  std::vector<bool> forced;
  int size = 1;
  int budget = 0;
  std::optional<double> ratio{}, lowest{};

  [[nodiscard]] int count() const { return static_cast<int>(scores.size()); }
  [[nodiscard]] int length() const { return count() < size && !lowest ? 1 : size; }
  [[nodiscard]] std::vector<int> members(int block) const {
    std::vector<int> all;
    for (int e = block * length(); e < std::min((block + 1) * length(), count()); ++e) all.push_back(e);
    return all;
  }
  [[nodiscard]] bool is_forced(int block) const {
    std::vector<int> const all = members(block);
    return std::any_of(all.begin(), all.end(), [&](int e) { return forced[static_cast<std::size_t>(e)]; });
  }
  [[nodiscard]] double mean(int block) const {
    double sum = 0;
    for (int const e : members(block)) sum += scores[static_cast<std::size_t>(e)];
    return sum / static_cast<double>(members(block).size());
  }

  [[nodiscard]] std::set<int> kept() const {
    int const entries = ratio ? static_cast<int>(std::floor(count() * (1 - *ratio) + 1e-9)) : budget;
    int const all = (count() + length() - 1) / length();
    std::vector<int> stay, compete;
    for (int b = 0; b < all; ++b) {
      bool const is_short = static_cast<int>(members(b).size()) < length();
      (is_forced(b) || (lowest && is_short) ? stay : compete).push_back(b);
    }
    auto const comes_before = [&](int a, int b) {
      double const first = mean(a), second = mean(b);
      if (std::isnan(first) != std::isnan(second)) return std::isnan(second);
      return std::isnan(first) || first == second ? a < b : first > second;
    };
    std::sort(compete.begin(), compete.end(), comes_before);
    auto left = static_cast<int>(compete.size());
    if (lowest) {
      left -= static_cast<int>(std::floor(*lowest * left + 1e-9));
    } else if (count() > entries) {
      int most = count() < size ? entries : ratio ? static_cast<int>(all * (1 - *ratio)) : entries / length();
      if (count() >= size) most = std::max(most, 1);
      left = std::clamp(most - static_cast<int>(stay.size()), 0, left);
    }
    std::set<int> made;
    stay.insert(stay.end(), compete.begin(), compete.begin() + left);
    for (int const b : stay) {
      for (int const e : members(b)) made.insert(e);
    }
    return made;
  }
};

}  // namespace kvpolicy_reference
