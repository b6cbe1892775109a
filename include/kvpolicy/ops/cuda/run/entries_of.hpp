// SPDX-License-Identifier: Apache-2.0
// How blocks divide the committed entries of segments among them.
#pragma once

#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Block i of a launch handles piece i % pieces of segment i / pieces.
template <class Body>
struct pieces_kernel {
  score_view of;
  int pieces;
  int entries;  ///< entries of a piece
  Body body;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index() / pieces;
    int const count = of.lanes.committed(of.lane_of(segment));
    int const begin = block.index() % pieces * entries;
    body(block, segment, {begin < count ? begin : count, count - begin < entries ? count : begin + entries});
  }
};

/// Launches body(block, segment, range), one block for each piece of each segment's committed entries. The body may
/// call collectives.
template <class Executor, class Body>
void launch_pieces(Executor& exec, score_view const& of, Body const& body, std::size_t shared = 0) {
  int const entries = exec.config().entries_of_a_block;
  int const pieces = (of.lanes.capacity + entries - 1) / entries;
  exec.launch(launch_shape{of.segments() * pieces, exec.threads().entry, shared},
              pieces_kernel<Body>{of, pieces, entries, body});
}

template <class Body>
struct entries_body {
  Body body;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block, int segment, ordinal_range const& range) const {
    body(segment, range, block.thread(), block.threads());
  }
};

/// Launches body(segment, range, first, step) on every thread. The thread handles entries range.begin + first, and
/// every step-th entry after it.
template <class Executor, class Body>
void launch_entries(Executor& exec, score_view const& of, Body const& body) {
  launch_pieces(exec, of, entries_body<Body>{body});
}

/// Launches a kernel of one warp for each segment, so that its sums have the same bits in every launch.
template <class Executor, class Kernel>
void launch_warps(Executor& exec, score_view const& of, Kernel const& kernel) {
  exec.launch(launch_shape{of.segments(), at_most<warp_size>(exec.threads().entry), 0}, kernel);
}

}  // namespace KVPOLICY_NAMESPACE::detail
