// SPDX-License-Identifier: Apache-2.0
// How blocks divide the committed entries of segments among them.
#pragma once

#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Block i of a launch handles piece i % pieces of segment i / pieces.
struct pieces_of_segments {
  score_view of;
  int pieces;
  int entries;  ///< entries of a piece

  [[nodiscard]] KVPOLICY_HD int segment(int block) const { return block / pieces; }
  [[nodiscard]] KVPOLICY_HD ordinal_range range(int block) const {
    int const count = of.lanes.committed(of.lane_of(segment(block)));
    int const begin = block % pieces * entries;
    return {begin < count ? begin : count, count - begin < entries ? count : begin + entries};
  }
};

template <class Body>
struct pieces_kernel {
  pieces_of_segments pieces;
  Body body;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    body(block, pieces.segment(block.index()), pieces.range(block.index()));
  }
};

template <class Body>
struct entries_kernel {
  pieces_of_segments pieces;
  Body body;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    body(pieces.segment(block.index()), pieces.range(block.index()), block.thread(), block.threads());
  }
};

template <class Executor>
[[nodiscard]] pieces_of_segments pieces_for(Executor& exec, score_view const& of) {
  int const entries = exec.config().entries_of_a_block;
  return {of, (of.lanes.capacity + entries - 1) / entries, entries};
}

/// Launches body(block, segment, range), one block for each piece of each segment's committed entries. The body may
/// call collectives.
template <class Executor, class Body>
void launch_pieces(Executor& exec, score_view const& of, Body const& body, std::size_t shared = 0) {
  pieces_of_segments const pieces = pieces_for(exec, of);
  exec.launch(launch_shape{of.segments() * pieces.pieces, exec.threads().entry, shared},
              pieces_kernel<Body>{pieces, body});
}

/// Launches body(segment, range, first, step) on every thread. The thread handles entries range.begin + first, and
/// every step-th entry after it.
template <class Executor, class Body>
void launch_entries(Executor& exec, score_view const& of, Body const& body) {
  pieces_of_segments const pieces = pieces_for(exec, of);
  exec.launch(launch_shape{of.segments() * pieces.pieces, exec.threads().entry, 0}, entries_kernel<Body>{pieces, body});
}

/// Launches a kernel of one warp for each segment, so that its sums have the same bits in every launch.
template <class Executor, class Kernel>
void launch_warps(Executor& exec, score_view const& of, Kernel const& kernel) {
  exec.launch(launch_shape{of.segments(), at_most<warp_size>(exec.threads().entry), 0}, kernel);
}

}  // namespace KVPOLICY_NAMESPACE::detail
