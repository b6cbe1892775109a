// SPDX-License-Identifier: Apache-2.0
// Checks results against the reference of the tests, before anything is timed.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "model.hpp"
#include "reference/methods.hpp"
#include "support/elements.hpp"

namespace bench {

namespace reference = kvpolicy_reference;

/// Converts rows of elements to numbers, without the conversions of the library.
inline reference::matrix decoded_rows(kv::codec element, std::byte const* from, int rows, int dims,
                                      std::int64_t stride = 0) {
  reference::matrix made(static_cast<std::size_t>(rows), reference::row(static_cast<std::size_t>(dims)));
  std::int64_t const width = kv::bytes_of(element);
  for (reference::row& one : made) {
    for (std::size_t d = 0; d < one.size(); ++d)
      one[d] = kvpolicy_test::decoded(element, from + static_cast<std::int64_t>(d) * width);
    from += stride != 0 ? stride : dims * width;
  }
  return made;
}

/// One lane of a cache in the form that the reference takes. Rows have one stride, and positions are ordinals.
inline reference::lane_attention lane_of(kv::cache const& in, kv::query_view const& queries, kv::lane this_lane) {
  reference::lane_attention made;
  int const count = in.lanes.committed(this_lane);
  int const dims = in.shape.head_dim;
  made.keys = decoded_rows(in.k.element, in.k.row(this_lane.layer, in.where.at(this_lane, 0), this_lane.head), count,
                           dims, in.k.token_stride);
  made.key_positions = reference::every_ordinal(static_cast<std::size_t>(count));
  int const group = in.shape.group();
  for (int h = this_lane.head * group; h < (this_lane.head + 1) * group; ++h)
    made.queries.push_back(decoded_rows(queries.element, queries.at(this_lane, h, 0), queries.rows, dims));
  for (int r = 0; r < queries.rows; ++r)
    made.query_positions.push_back(queries.position.data != nullptr ? queries.position.row(this_lane)[r] : count);
  return made;
}

/// The tolerance of masses and norms, relative to the largest one of the reference. Sums are in float, and a dot
/// product of 16-bit keys may round queries to 16 bits.
inline double tolerance(kv::codec element) { return element == kv::codec::f32 ? 1e-4 : 1e-2; }

inline bool close(std::span<float const> actual, reference::row const& expected, double relative) {
  double const scale =
      *std::max_element(expected.begin(), expected.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
  for (std::size_t e = 0; e < expected.size(); ++e) {
    if (!(std::abs(static_cast<double>(actual[e]) - expected[e]) <= relative * std::abs(scale))) return false;
  }
  return actual.size() == expected.size();
}

/// True if `kept` is a valid keep set for these scores: it is ascending, has `budget` entries and every forced entry,
/// and keeps no candidate whose score is more than `slack` below that of a dropped one.
inline bool keeps_best(std::span<int const> kept, reference::row const& scores, reference::flags const& forced,
                       int budget, double slack) {
  if (std::ssize(kept) != std::min<std::ptrdiff_t>(budget, std::ssize(scores))) return false;
  reference::flags stays(scores.size(), false);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (i > 0 && kept[i] <= kept[i - 1]) return false;
    stays[static_cast<std::size_t>(kept[i])] = true;
  }
  double lowest_kept = reference::infinity;
  double highest_dropped = -reference::infinity;
  for (std::size_t e = 0; e < scores.size(); ++e) {
    if (forced[e] && !stays[e]) return false;
    if (forced[e]) continue;
    if (stays[e]) lowest_kept = std::min(lowest_kept, scores[e]);
    if (!stays[e]) highest_dropped = std::max(highest_dropped, scores[e]);
  }
  return lowest_kept >= highest_dropped - slack;
}

/// True if the lanes of a keep set are exactly the top k of the reference. All are counted, and a few are compared.
inline bool is_top_k(kv::keep_set const& keep, float const* scores, int entries, int k) {
  int const lanes = keep.segments();
  for (int lane = 0; lane < lanes; ++lane) {
    if (std::ssize(keep.listed(lane)) != std::min(k, entries)) return false;
  }
  for (int i = 0; i < std::min(lanes, 6); ++i) {
    int const lane = static_cast<int>(std::int64_t{i} * (lanes - 1) / std::max(1, std::min(lanes, 6) - 1));
    float const* const row = scores + std::int64_t{lane} * entries;
    auto const width = static_cast<std::size_t>(entries);
    reference::selection const expected =
        reference::select(reference::row(row, row + entries), reference::flags(width, false), k);
    auto const kept = keep.listed(lane);
    if (!std::equal(kept.begin(), kept.end(), expected.kept.begin(), expected.kept.end())) return false;
  }
  return true;
}

}  // namespace bench
