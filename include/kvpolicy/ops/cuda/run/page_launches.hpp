// SPDX-License-Identifier: Apache-2.0
// Launch helpers for verbs in which several blocks work on one lane.
#pragma once

#include <kvpolicy/core/lanes.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The shared memory that a block can use on every device without opting in.
inline constexpr int default_shared_bytes = 48 * 1024;

/// How many blocks work on one lane: as many as fill the device, but not more than `pieces`, and at least one. A kernel
/// whose blocks prepare something first says how many of them a multiprocessor runs at once, `of_a_processor`. Then all
/// blocks run at once, if each lane still gets four.
template <class Executor>
[[nodiscard]] int count_blocks_per_lane(Executor& exec, int lanes, std::int64_t pieces, int of_a_processor = 0) {
  std::int64_t const at_once = std::int64_t{exec.config().processors} * of_a_processor;
  std::int64_t const all = std::int64_t{exec.config().processors} * exec.config().blocks_of_a_processor;
  bool const several = lanes > 0 && at_once >= std::int64_t{4} * lanes;
  std::int64_t const fair = several ? at_once / lanes : lanes > 0 ? (all + lanes - 1) / lanes : 1;
  std::int64_t const most = pieces > 1 ? pieces : 1;
  return static_cast<int>(fair < most ? fair : most);
}

/// The place of a warp among the warps of all blocks that work on its lane: it is number `first` of `step`.
struct warp_stride {
  int first;
  int step;
};
template <class Block>
[[nodiscard]] KVPOLICY_HD warp_stride stride_of_warp(Block& block, int blocks_per_lane) {
  int const warps = block.threads() / warp_size;
  return {block.index() % blocks_per_lane * warps + warp_id(block), blocks_per_lane * warps};
}

/// Calls visit(i, before) for each number below `all` that counts, where `before` of those before it do. Returns how
/// many count. By one warp.
template <class Block, class Counts, class Visit>
KVPOLICY_HD int rank_by_warp(Block& block, int all, Counts const& counts, Visit const& visit) {
  int counted = 0;
  for (int first = 0; first < all; first += warp_size) {
    int const i = first + lane_id(block);
    bool const one = i < all && counts(i);
    unsigned const those = block.ballot(one);
    if (one) visit(i, counted + popcount(those & ((1u << lane_id(block)) - 1u)));
    counted += popcount(those);
  }
  return counted;
}

}  // namespace KVPOLICY_NAMESPACE::detail
