// SPDX-License-Identifier: Apache-2.0
// Device implementations of ring_append and ring_truncate, one block for each lane.
#pragma once

#include <kvpolicy/ops/cuda/attention/query_rows.hpp>
#include <kvpolicy/ops/cuda/run/page_launches.hpp>
#include <kvpolicy/ops/ring_append.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// How many rows of a ring are at positions before `position`: those that remain when it is truncated there.
struct rows_before {
  query_ring_view ring;
  [[nodiscard]] KVPOLICY_HD int operator()(lane one, int position) const {
    int const* const cursor = ring.cursor.row(one);  // {first, valid}
    int const* const positions = ring.position.row(one);
    int left = cursor[1];
    while (left > 0 && positions[(cursor[0] + left - 1) % ring.capacity] >= position) --left;
    return left;
  }
};

struct ring_append_kernel {
  lanes batch;
  query_view from;
  query_ring_view ring;

  static constexpr std::size_t shared = collective_bytes();

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = batch.at(block.index());
    int const end = committed_rows(block, one);
    if (end == 0) return;
    int const begin = end > ring.capacity ? end - ring.capacity : 0;
    int const* const position = from.position.row(one);
    int const left = rows_before{ring}(one, position[from.stored(one, begin)]);
    int const first = ring.cursor.row(one)[0];
    block.sync();  // every thread has read the cursor and the positions
    int const filled = left + end - begin;
    if (block.thread() == 0) {
      int const over = filled > ring.capacity ? filled - ring.capacity : 0;
      ring.cursor.row(one)[0] = (first + over) % ring.capacity;
      ring.cursor.row(one)[1] = filled - over;
    }
    for (int r = begin + block.thread(); r < end; r += block.threads()) {
      ring.position.row(one)[(first + left + r - begin) % ring.capacity] = position[from.stored(one, r)];
    }
    copy_rows(block, one, begin, end, first + left);
  }

 private:
  /// The number of rows up to the position of the newest committed token.
  template <class Block>
  KVPOLICY_HD int committed_rows(Block& block, lane one) const {
    int const last = batch.newest(one);
    int end = last >= 0 ? from.valid(one) : 0;
    int const* const position = from.position.row(one);
    for (int r = block.thread(); r < end; r += block.threads()) {
      if (position[from.stored(one, r)] > last) end = r;
    }
    return block.reduce(shared_arena(block).take<collective_storage>(1), end, min_op{});
  }

  /// Copies rows, one warp for each row of a query head.
  template <class Block>
  KVPOLICY_HD void copy_rows(Block& block, lane one, int begin, int end, int slot) const {
    int const rows = end - begin;
    int const warps = block.threads() / warp_size;
    int const size = bytes_of(from.element);
    for (int i = warp_id(block); i < ring.group * rows; i += warps) {
      int const h = i / rows;
      int const r = i % rows;
      std::byte const* const row = from.at(one, one.head * ring.group + h, from.stored(one, begin + r));
      int const at = (slot + r) % ring.capacity;
      float* const to = ring.rows.row(one) + (std::int64_t{h} * ring.capacity + at) * ring.dims;
      for (int d = lane_id(block); d < ring.dims; d += warp_size) to[d] = element_at(from.element, row + d * size);
    }
  }
};

struct truncate_ring_of_lane {
  kvpolicy::lanes lanes;
  query_ring_view ring;
  int first;  ///< the index of the sequence's first lane
  int position;
  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one = lanes.at(first + static_cast<int>(i));
    ring.cursor.row(one)[1] = rows_before{ring}(one, position);
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::ring_append_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, query_view const& from, query_ring_view const& ring) {
    if (from.rows == 0) return;
    detail::check_aligned("ring_append", from);
    detail::launch_unless_fault(exec,
                                launch_shape{batch.size(), exec.threads().row, detail::ring_append_kernel::shared},
                                detail::ring_append_kernel{batch, from, ring});
  }
};

template <kernel_backend Backend>
struct implementation<ops::ring_truncate_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, query_ring_view const& ring, int sequence, int position) {
    if (sequence < batch.sequence_begin || sequence >= batch.sequence_end()) return;
    int const lanes_each = batch.layers() * batch.heads;
    detail::launch_each_unless_fault(
        exec, lanes_each,
        detail::truncate_ring_of_lane{batch, ring, (sequence - batch.sequence_begin) * lanes_each, position});
  }
};

}  // namespace KVPOLICY_NAMESPACE
