// SPDX-License-Identifier: Apache-2.0
// The shares of lanes by LU-KV's table of prune ratios.
#pragma once

#include <algorithm>
#include <cmath>
#include <list>
#include <numeric>
#include <string>
#include <vector>

#include "options.hpp"
#include "results.hpp"
#include "trace.hpp"

namespace kvreplay {

/// The number of entries that each lane may keep: `table.NAME` has the ratio of each lane that is pruned, [L, Hkv], or
/// one such row for each of 99 ratios, 0.01 to 0.99.
class pruned_shares {
 public:
  pruned_shares(trace const& of, options const& with, std::string const& name) : heads_(of.shape().kv_heads) {
    auto const found = of.table.find(name);
    if (found == of.table.end()) refuse("table." + name, "missing", "the policy shares out by it: --set table=");
    array const& from = found->second;
    if (from.shape.size() == 1)
      refuse("table." + name, "one number for each layer", "the policy reads one of each lane");
    if (from.shape.back() != heads_) {
      refuse("table." + name, std::to_string(from.shape.back()) + " numbers for each layer",
             "the policy reads one of each lane");
    }
    std::int64_t const lanes = std::int64_t{of.shape().layers} * of.shape().kv_heads;
    std::int64_t const first = from.shape.size() == 3 ? row_of(from, name, with) * lanes : 0;
    for (int layer = 0; layer < of.shape().layers; ++layer) {
      share_out(from, first + std::int64_t{layer} * of.shape().kv_heads, of.shape().kv_heads, of.entries());
    }
  }
  /// The shares of some layers, which live as long as this object.
  [[nodiscard]] kv::by_lane<int const> table(std::vector<int> const& layers) {
    std::vector<int>& made = tables_.emplace_back();
    for (int const layer : layers) {
      auto const first = shares_.begin() + std::ptrdiff_t{layer} * heads_;
      made.insert(made.end(), first, first + heads_);
    }
    return {made.data(), 0, heads_, 1};
  }

 private:
  static std::int64_t row_of(array const& from, std::string const& name, options const& with) {
    if (from.shape[0] != 99) {
      refuse("table." + name, std::to_string(from.shape[0]) + " rows", "it has one for each ratio of 0.01 to 0.99");
    }
    double ratio = 0;
    kv::expects(kv::detail::read_value(with.ratio, ratio), "kvreplay", "--ratio",
                with.ratio.empty() ? "missing" : with.ratio, "it says which row of the table counts");
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::nearbyint(100 * ratio)) - 1, 0, 98);
  }

  /// Shares out the entries of a layer by largest remainder.
  void share_out(array const& from, std::int64_t first, int heads, int entries) {
    std::vector<double> wanted;
    for (int head = 0; head < heads; ++head) {
      auto const pruned = static_cast<double>(from.value(first + head));
      wanted.push_back(std::clamp(1 - pruned, 0.0, 1.0) * entries);
    }
    double const sum = std::nearbyint(std::accumulate(wanted.begin(), wanted.end(), 0.0));
    auto rest = std::clamp(static_cast<std::int64_t>(sum), std::int64_t{heads}, std::int64_t{heads} * entries);
    std::vector<std::pair<std::int64_t, int>> order;
    std::size_t const begin = shares_.size();
    for (int head = 0; head < heads; ++head) {
      auto const whole = static_cast<int>(wanted[size(head)] + 1e-9);
      rest -= whole;
      order.emplace_back(-static_cast<std::int64_t>(1e9 * std::max(0.0, wanted[size(head)] - whole) + 0.5), head);
      shares_.push_back(whole);
    }
    std::sort(order.begin(), order.end());
    for (std::int64_t i = 0; i < std::min<std::int64_t>(rest, heads); ++i) {
      ++shares_[begin + size(order[size(i)].second)];
    }
    for (std::size_t i = begin; i < shares_.size(); ++i) shares_[i] = std::clamp(shares_[i], 1, std::max(1, entries));
  }

  std::vector<int> shares_;  ///< of all layers
  std::list<std::vector<int>> tables_;
  int heads_;
};

}  // namespace kvreplay
