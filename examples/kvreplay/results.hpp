// What a replay has found.
#pragma once

#include <chrono>
#include <cstdint>
#include <kvpolicy/kvpolicy.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

namespace kv = kvpolicy;

[[nodiscard]] inline std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Ragged lists of ordinals into the trace, one segment after another.
struct ragged {
  std::vector<std::int64_t> offsets{0};
  std::vector<std::int64_t> ordinals;

  void add(std::vector<std::vector<int>> const& segments) {
    for (std::vector<int> const& one : segments) {
      ordinals.insert(ordinals.end(), one.begin(), one.end());
      offsets.push_back(std::ssize(ordinals));
    }
  }
};

/// Wall time in milliseconds.
class stopwatch {
 public:
  /// Milliseconds since it was made or last asked.
  double lap() {
    auto const now = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::milli>(now - std::exchange(begin_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

struct milliseconds {
  double decide = 0;  ///< observing and deciding, and reading pages on the way
  double apply = 0;   ///< carrying out, copying pages that are written, and giving them back
  double attend = 0;
  double write = 0;  ///< waiting for what is written
  double total = 0;
};

struct results {
  ragged keep;
  ragged turns;
  std::optional<ragged> local;       ///< what is in the windows of an admission
  std::optional<ragged> pages;       ///< what a selection reads
  std::vector<float> scores;         ///< [segments][entries, or pages]; empty: nothing was ranked
  std::vector<float> memory;         ///< [L][Hq][D], what the last turn has left; empty: the policy has none
  std::vector<std::int64_t> events;  ///< (step, segment, ordinal)
  std::vector<float> output;         ///< [L][Hq][Dv]
  int segments = 0;
  kv::apply_stats told;
  kv::report report;
  std::optional<kv::promotion_stats> promoted;  ///< what an admission came to
  milliseconds ms;
  std::vector<std::string> warnings;
};

}  // namespace kvreplay
