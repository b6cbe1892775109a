// SPDX-License-Identifier: Apache-2.0
// Host implementations of ring_append and ring_truncate.
#pragma once

#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/ring_append.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::ring_append_t, host> {
  static void run(host_executor& exec, lanes const& batch, query_view const& from, query_ring_view const& ring) {
    exec.for_each(batch.size(), [&](int i, int) {
      lane const this_lane = batch.at(i);
      int const last = batch.newest(this_lane);
      if (last < 0) return;
      int const* const position = from.position.row(this_lane);
      int end = 0;
      while (end < from.valid(this_lane) && position[from.stored(this_lane, end)] <= last) ++end;
      for (int r = end > ring.capacity ? end - ring.capacity : 0; r < end; ++r) {
        push(exec, ring, this_lane, from, from.stored(this_lane, r), position[from.stored(this_lane, r)]);
      }
    });
  }

 private:
  static void push(host_executor const& exec, query_ring_view const& ring, lane this_lane, query_view const& from,
                   int stored, int position) {
    int* const cursor = ring.cursor.row(this_lane);  // {first, valid}
    int* const positions = ring.position.row(this_lane);
    auto const slot = [&](int r) { return (cursor[0] + r) % ring.capacity; };
    while (cursor[1] > 0 && positions[slot(cursor[1] - 1)] >= position) --cursor[1];
    if (cursor[1] == ring.capacity) {
      cursor[0] = slot(1);
      --cursor[1];
    }
    int const at = slot(cursor[1]++);
    positions[at] = position;
    for (int h = 0; h < ring.group; ++h) {
      detail::convert_row(exec.simd_level(), from.element, from.at(this_lane, this_lane.head * ring.group + h, stored),
                          bytes_of(from.element), ring.dims,
                          ring.rows.row(this_lane) + (static_cast<std::int64_t>(h) * ring.capacity + at) * ring.dims);
    }
  }
};

template <>
struct implementation<ops::ring_truncate_t, host> {
  static void run(host_executor&, lanes const& batch, query_ring_view const& ring, int sequence, int position) {
    for (int i = 0; i < batch.size(); ++i) {
      lane const one = batch.at(i);
      if (one.sequence != sequence) continue;
      int* const cursor = ring.cursor.row(one);  // {first, valid}
      int const* const positions = ring.position.row(one);
      while (cursor[1] > 0 && positions[(cursor[0] + cursor[1] - 1) % ring.capacity] >= position) --cursor[1];
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
