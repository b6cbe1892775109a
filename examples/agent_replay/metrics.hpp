// What is counted for each contender, and the figures that follow.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace agent_replay {

/// A share of `of` cases and its 95 % interval (Wilson 1927).
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

/// One contender's row. Tokens are counted by id, in code that no policy touches.
struct metrics {
  std::string name;
  std::string layout;
  std::string policy;                 ///< as it prints
  share answers{};                    ///< all questions
  share again{};                      ///< those about a fact that was asked for in an earlier turn
  std::int64_t sent = 0;              ///< prompt tokens of all turns
  std::int64_t found = 0;             ///< of those, tokens that the prefix cache had
  int peak_slots = 0;                 ///< the most slots that were given out at once, the prefix tree's among them
  int peak_request = 0;               ///< the most tokens that one request held before its turn's decision
  int peak_live = 0;                  ///< the most tokens that a decode step of a request attended to
  std::int64_t raw_reads = 0;         ///< tokens that decode steps would have attended to without their turn's decision
  std::int64_t effective_reads = 0;   ///< tokens that they attended to
  std::vector<double> first_token{};  ///< seconds from a turn's arrival to its first token
  std::vector<double> live_sum{};     ///< by turn: live tokens after the decision, summed over sessions
  std::vector<int> live_of{};
  int refused = 0;  ///< turns that found no room
  int leaked = 0;   ///< slots that are given out when nobody can own one any more
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
