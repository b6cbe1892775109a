// Maps of the positions of a prompt that each lane still held after its policy had decided.
#pragma once

#include <cstdint>
#include <kvpolicy/core/lanes.hpp>
#include <span>
#include <vector>

#include "tasks.hpp"

namespace demo {

namespace kv = kvpolicy;

/// Sets the bits of the positions that one part of a cache holds.
inline void map_part(kv::lanes const& batch, std::size_t lane_bytes, bytes& bits) {
  for (int i = 0; i < batch.size(); ++i) {
    kv::lane const one = batch.at(i);
    for (int e = 0; e < batch.committed(one); ++e) {
      auto const position = static_cast<std::size_t>(batch.position.row(one)[e]);
      bits[static_cast<std::size_t>(i) * lane_bytes + position / 8] |= static_cast<std::uint8_t>(1U << position % 8);
    }
  }
}

/// One bit for each lane and position, for all parts of a cache. Lanes are in the order of `kv::lanes::at` and start at
/// whole bytes. Position 0 is the lowest bit of a lane's first byte.
inline bytes keep_map(std::span<kv::lanes const> parts, int positions) {
  std::size_t const lane_bytes = (static_cast<std::size_t>(positions) + 7) / 8;
  bytes bits(lane_bytes * static_cast<std::size_t>(parts.front().size()));
  for (kv::lanes const& batch : parts) map_part(batch, lane_bytes, bits);
  return bits;
}

/// A recall prompt that ends with its question, and its results in each row of the table.
struct mapped_prompt {
  recall_case about;
  bytes text;                 ///< the prompt and its question
  std::vector<bytes> kept;    ///< the keep_map of each row, right after the decision
  std::vector<bool> right{};  ///< for each row whether the answer was right
};

}  // namespace demo
