// SPDX-License-Identifier: Apache-2.0
// The counts of each contender, and the figures that follow from them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace agent_replay {

/// A fraction of right cases, and its 95 % interval (Wilson 1927).
struct share {
  int right = 0;
  int of = 0;

  void count(bool was_right) {
    right += was_right ? 1 : 0;
    ++of;
  }
  [[nodiscard]] double value() const { return of > 0 ? static_cast<double>(right) / of : 0; }
  [[nodiscard]] double low() const { return std::max(0.0, middle() - half()); }
  [[nodiscard]] double high() const { return std::min(1.0, middle() + half()); }

 private:
  static constexpr double z = 1.959964;
  [[nodiscard]] double middle() const { return (value() + z * z / (2 * n())) / (1 + z * z / n()); }
  [[nodiscard]] double half() const {
    return z / (1 + z * z / n()) * std::sqrt(value() * (1 - value()) / n() + z * z / (4 * n() * n()));
  }
  [[nodiscard]] double n() const { return std::max(1, of); }
};

/// The row of one contender. Tokens are counted by id, in code that no policy influences.
struct metrics {
  std::string name;
  std::string layout;
  std::string policy;                 ///< the policy's text
  share answers{};                    ///< right answers to all questions
  share again{};                      ///< right answers to questions about a fact that an earlier turn has asked for
  std::int64_t sent = 0;              ///< prompt tokens of all turns
  std::int64_t found = 0;             ///< those of them that were in the prefix cache
  int peak_slots = 0;                 ///< the largest number of allocated slots, those of the prefix tree included
  int peak_request = 0;               ///< the largest number of tokens that a request held before its turn's decision
  int peak_live = 0;                  ///< the largest number of tokens that a decode step of a request attended to
  std::int64_t raw_reads = 0;         ///< tokens that decode steps would have attended to without their turn's decision
  std::int64_t effective_reads = 0;   ///< tokens that decode steps attended to
  std::vector<double> first_token{};  ///< seconds from a turn's arrival to its first token
  std::vector<double> live_sum{};     ///< for each turn the live tokens after the decision, summed over sessions
  std::vector<int> live_of{};         ///< for each turn the number of sessions in that sum
  int refused = 0;                    ///< turns that were refused because the pool was full
  int leaked = 0;                     ///< slots that are still allocated after all owners are gone
  int double_frees = 0;

  [[nodiscard]] double hit_rate() const {
    return sent > 0 ? static_cast<double>(found) / static_cast<double>(sent) : 0;
  }
  [[nodiscard]] double median_first_token() const {
    if (first_token.empty()) return 0;
    std::vector<double> sorted = first_token;
    auto const middle = sorted.begin() + std::ssize(sorted) / 2;
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
  }
  void note_live(std::size_t turn, int live) {
    if (live_of.size() <= turn) {
      live_of.resize(turn + 1);
      live_sum.resize(turn + 1);
    }
    live_sum[turn] += live;
    ++live_of[turn];
  }
  [[nodiscard]] double mean_live(std::size_t turn) const { return live_sum[turn] / std::max(1, live_of[turn]); }
};

}  // namespace agent_replay
