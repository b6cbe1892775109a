// SPDX-License-Identifier: Apache-2.0
// The results of a replay.
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

/// Ragged lists of the trace's ordinals, one segment after another.
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

/// Measures wall time in milliseconds.
class stopwatch {
 public:
  /// The milliseconds since construction or the last call.
  double lap() {
    auto const now = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::milli>(now - std::exchange(begin_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

struct milliseconds {
  double decide = 0;  ///< observing and deciding, including the reading of the file's pages
  double apply = 0;   ///< applying decisions, copying the file's pages that are written, and giving them back
  double attend = 0;
  double write = 0;  ///< waiting for the output
  double total = 0;
};

struct results {
  kv::granularity decides = kv::granularity::lane;
  std::vector<int> group;  ///< each layer's group; empty if all layers are one
  ragged keep;
  ragged turns;
  std::optional<ragged> local;           ///< the entries in the windows of an admission
  std::optional<ragged> pages;           ///< the pages that a selection reads
  std::vector<float> scores;             ///< [segments][entries or pages]; empty if nothing was ranked
  std::vector<float> statistics;         ///< [layers, 3] of `by=moments`: entropy, variance, preference; or empty
  std::vector<std::int64_t> shares;      ///< [segments]; empty unless the budget was allotted and something is dropped
  std::vector<std::int64_t> layer_kept;  ///< [layers, segments], where layers are cut again: see docs/kvreplay.md
  std::vector<std::int64_t> recipe;      ///< [segments]: FastGen's, or SimLayerKV's, 1 for a lazy layer; else empty
  std::vector<float> memory;             ///< [L][Hq][D], the query memory after the last turn; empty if there is none
  std::vector<std::int64_t> events;      ///< (step, segment, ordinal)
  std::vector<float> output;             ///< [L][Hq][Dv]
  int segments = 0;
  kv::apply_stats stats;
  kv::report report;
  std::optional<kv::promotion_stats> promoted;  ///< the statistics of an admission
  milliseconds ms;
  std::vector<std::string> warnings;

  /// The segment in which a lane is decided.
  [[nodiscard]] int segment_of(int layer, int head, int heads) const {
    if (decides == kv::granularity::lane) return layer * heads + head;
    if (decides == kv::granularity::layer) return layer;
    return group.empty() ? 0 : group[size(layer)];
  }
};

}  // namespace kvreplay
