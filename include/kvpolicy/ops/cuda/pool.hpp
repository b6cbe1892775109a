// SPDX-License-Identifier: Apache-2.0
// Device implementation of pool: in place, piece by piece, after the scores near the edges of pieces have been copied.
#pragma once

#include <kvpolicy/ops/cuda/run/entries_of.hpp>
#include <kvpolicy/ops/pool.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The arguments of both launches: the scores, the copies of scores that other pieces read, and the width of a pool.
struct pool_rows {
  score_view scores;
  float* aside;  ///< bound floats for each segment
  int reach;     ///< entries on either side that a pool covers
  int width;
  bool average;
  int tail;

  [[nodiscard]] KVPOLICY_HD int count(int segment) const {
    int const all = scores.lanes.committed(scores.lane_of(segment)) - tail;
    return all < 0 ? 0 : all;
  }
  [[nodiscard]] KVPOLICY_HD float* copy(int segment) const {
    return aside + static_cast<std::int64_t>(segment) * scores.lanes.capacity;
  }
};

/// Copies the scores that neighbouring pieces read.
struct pool_edges {
  pool_rows rows;

  KVPOLICY_HD void operator()(int segment, ordinal_range of, int first, int step) const {
    float const* const from = rows.scores.row(segment);
    float* const to = rows.copy(segment);
    for (int e = of.begin + first; e < of.end; e += step) {
      if (e - of.begin < rows.reach || of.end - e <= rows.reach) to[e] = from[e];
    }
  }
};

/// Pools a piece. Shared memory holds its scores while they are overwritten.
struct pool_piece {
  pool_rows rows;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, int segment, ordinal_range of) const {
    float* const row = rows.scores.row(segment);
    auto* const staged = reinterpret_cast<float*>(block.shared());
    for (int e = of.begin + block.thread(); e < of.end; e += block.threads()) staged[e - of.begin] = row[e];
    block.sync();
    int const count = rows.count(segment);
    float const* const copied = rows.copy(segment);
    for (int e = of.begin + block.thread(); e < of.end && e < count; e += block.threads()) {
      row[e] = pooled(of, staged, copied, count, e);
    }
  }

 private:
  [[nodiscard]] KVPOLICY_HD float pooled(ordinal_range of, float const* staged, float const* copied, int count,
                                         int at) const {
    int const first = at > rows.reach ? at - rows.reach : 0;
    int const last = count - 1 - at > rows.reach ? at + rows.reach : count - 1;
    float value = 0;
    for (int e = first; e <= last; ++e) {
      float const next = e >= of.begin && e < of.end ? staged[e - of.begin] : copied[e];
      if (e == first) {
        value = next;
      } else if (rows.average) {
        value += next;
      } else if (value == value && !(next <= value)) {  // higher, or NaN
        value = next;
      }
    }
    return rows.average ? value / static_cast<float>(rows.width) : value;
  }
};

}  // namespace detail

/// Takes two launches, or one where every segment is a single piece. Results have the same bits as on the host.
template <kernel_backend Backend>
struct implementation<ops::pool_t, Backend> {
  static std::size_t scratch(shape const&, lanes const& batch) {
    return static_cast<std::size_t>(batch.size()) * static_cast<std::size_t>(batch.capacity) * sizeof(float);
  }

  template <class Executor>
  static void run(Executor& exec, pooling const& by, score_view const& scores, int tail) {
    if (by.how == pooling::kind::none) return;
    detail::check_scratch("pool", exec, scratch({}, scores.lanes));
    auto* const aside = reinterpret_cast<float*>(exec.scratch());
    detail::pool_rows const rows{scores, aside, by.width / 2, by.width, by.how == pooling::kind::avg, tail};
    int const piece = exec.config().entries_of_a_block;
    if (scores.lanes.capacity > piece && rows.reach > 0) detail::launch_entries(exec, scores, detail::pool_edges{rows});
    detail::launch_pieces(exec, scores, detail::pool_piece{rows}, static_cast<std::size_t>(piece) * sizeof(float));
  }
};

}  // namespace KVPOLICY_NAMESPACE
