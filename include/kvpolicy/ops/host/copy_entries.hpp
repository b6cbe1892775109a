// SPDX-License-Identifier: Apache-2.0
// Copies entries from one cache into another: their rows and their recorded columns.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/ops/append_rows.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// Copies a row of a plane into a row of another plane. Elements are the same; strides may differ.
inline void copy_row(plane const& from, std::byte const* source, plane const& to, std::byte* target) {
  auto const width = static_cast<std::size_t>(bytes_of(from.element));
  if (from.contiguous() && to.contiguous()) {
    std::memcpy(target, source, width * static_cast<std::size_t>(from.channels));
    return;
  }
  for (int d = 0; d < from.channels; ++d)
    std::memcpy(target + d * to.channel_stride, source + d * from.channel_stride, width);
}

/// Prefetches the cache lines of a row into the first-level cache. It must be inlined, because g++ removes a call that
/// has no effect.
[[gnu::always_inline]] inline void fetch_row(plane const& rows, std::byte const* row) {
  int const bytes = rows.contiguous() ? rows.channels * bytes_of(rows.element) : 0;
  for (int at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 3);
}

/// Where an entry is in two caches.
struct entry_places {
  place from;
  place to;
};

/// Copies the rows of an entry in every plane.
inline void copy_entry(cache const& from, cache const& to, lane this_lane, entry_places const& at) {
  auto const& [here, there] = at;
  auto const one = [&](plane const& a, plane const& b) {
    copy_row(a, a.row(this_lane.layer, here, this_lane.head), b, b.row(this_lane.layer, there, this_lane.head));
  };
  one(from.k, to.k);
  if (!is_latent(to)) one(from.v, to.v);
  for (std::size_t i = 0; i < to.more.size(); ++i) one(from.more[i], to.more[i]);
}

inline void copy_entry(cache const& from, cache const& to, lane this_lane, int source, int target) {
  copy_entry(from, to, this_lane, {from.where.at(this_lane, source), to.where.at(this_lane, target)});
}

/// Copies the recorded values of entry `source(i)` of a lane to entry `first + i`.
template <class Source>
void copy_columns(std::span<recorded_column const> from, std::span<recorded_column const> to, lane this_lane,
                  Source const& source, int first, int count) {
  for (recorded_column const& each : to) {
    if (each.about.extent != column_extent::lane_entry) continue;
    auto const width = static_cast<std::size_t>(each.about.bytes);
    std::byte* target = each.rows.row(this_lane) + static_cast<std::size_t>(first) * width;
    recorded_column const* const known = same_column(from, each.about);
    for (int i = 0; i < count; ++i, target += width) {
      if (known == nullptr) {
        std::memset(target, 0, width);
      } else {
        std::memcpy(target, known->rows.row(this_lane) + static_cast<std::size_t>(source(i)) * width, width);
      }
    }
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
