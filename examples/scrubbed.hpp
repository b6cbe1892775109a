// SPDX-License-Identifier: Apache-2.0
// An applier of your own: nothing of a token that was dropped stays in memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <kvpolicy/kvpolicy.hpp>

// example-begin applier
/// Moves the rows that are kept together, and writes zeros into the rows behind them. It runs on the host.
struct scrubbed {
  static constexpr auto name = "scrubbed";
  static constexpr auto effects = kvpolicy::compact::effects;
  using verbs = kvpolicy::compact::verbs;  // what it runs and needs scratch memory for

  void refuse(auto& exec, kvpolicy::keep_set const& keep, kvpolicy::cache const& in) const {
    kvpolicy::compact{}.refuse(exec, keep, in);
  }
  void edit(auto& exec, kvpolicy::keep_set const& keep, kvpolicy::cache const& part, auto& state,
            kvpolicy::apply_stats* stats) const {
    kvpolicy::compact{}.edit(exec, keep, part, state, stats);
    exec.for_each(part.lanes.size(), [&](int i, int) {
      kvpolicy::lane const lane = part.lanes.at(i);
      int const before = keep.entry_count[kvpolicy::segment_of(part.lanes, keep.decides, i)];
      for (int entry = part.lanes.committed(lane); entry < before; ++entry) {
        for (kvpolicy::plane const& rows : {part.k, part.v}) {
          std::memset(rows.row(lane.layer, part.where.at(lane, entry), lane.head), 0,
                      static_cast<std::size_t>(rows.channels * kvpolicy::bytes_of(rows.element)));
        }
      }
    });
  }
};
// example-end applier
static_assert(kvpolicy::applier<scrubbed>);
