// SPDX-License-Identifier: Apache-2.0
// Device implementations of the verbs that maintain the bounds of pages: one warp for each page, consecutive
// threads on consecutive channels.
#pragma once

#include <kvpolicy/ops/cuda/run/page_launches.hpp>
#include <kvpolicy/ops/cuda/run/page_loads.hpp>
#include <kvpolicy/ops/page_bounds.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Maps a float to an integer so that integers compare as the floats do. -0 is below +0, and a NaN is beyond the
/// infinity of its sign, so that no NaN is lost in a comparison. The mapping is its own inverse.
struct ordered_bits {
  [[nodiscard]] KVPOLICY_HD std::int32_t operator()(float value) const {
    return turned(same_bits<std::int32_t>(value));
  }
  [[nodiscard]] KVPOLICY_HD float back(std::int32_t order) const { return same_bits<float>(turned(order)); }

 private:
  KVPOLICY_HD static std::int32_t turned(std::int32_t bits) { return bits < 0 ? bits ^ 0x7FFFFFFF : bits; }
};

template <class Loads>
struct extend_bounds_kernel {
  kvpolicy::lanes lanes;
  row_view from;
  page_bound_memory to;
  Loads loads;
  int blocks_per_lane;

  static constexpr int rows_at_once = 4;  ///< loads that a thread has in flight

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = lanes.at(block.index() / blocks_per_lane);
    int const committed = lanes.committed(one);
    int const known = *to.known.row(one);
    int const pages = pages_for(committed, to.page);
    warp_stride const stride = stride_of_warp(block, blocks_per_lane);
    for (int which = (known < committed ? known : committed) / to.page + stride.first; which < pages;
         which += stride.step) {
      int const begin = which * to.page;
      ordinal_range const entries{begin, committed - begin < to.page ? committed : begin + to.page};
      for (int d = lane_id(block) * Loads::width; d < to.dims; d += warp_size * Loads::width) {
        bound(one, entries, d, to.row(one, which));
      }
    }
  }

 private:
  /// Computes the bounds of channels d to d + Loads::width - 1 over the entries. Behind the last entry of the page, it
  /// is loaded again, which changes nothing.
  KVPOLICY_HD void bound(lane one, ordinal_range entries, int d, std::byte* row) const {
    std::int32_t high[Loads::width];
    std::int32_t low[Loads::width];
    for (int i = 0; i < Loads::width; ++i) {
      high[i] = -0x7FFFFFFF - 1;
      low[i] = 0x7FFFFFFF;
    }
    for (int e = entries.begin; e < entries.end; e += rows_at_once) {
      typename Loads::raw key[rows_at_once];
      for (int r = 0; r < rows_at_once; ++r) {
        int const ordinal = e + r < entries.end ? e + r : entries.end - 1;
        key[r] = loads.load(from.row(one, ordinal) + d * from.rows.channel_stride);
        if constexpr (std::is_same_v<Loads, one_fp8_element>) key[r] *= from.scale(one, ordinal);
      }
      for (int r = 0; r < rows_at_once; ++r) {
        for (int i = 0; i < Loads::width; ++i) {
          std::int32_t const value = ordered_bits{}(Loads::value(key[r], i));
          high[i] = value > high[i] ? value : high[i];
          low[i] = value < low[i] ? value : low[i];
        }
      }
    }
    std::int64_t const size = bytes_of(to.element);
    for (int i = 0; i < Loads::width; ++i) {
      put_element(to.element, ordered_bits{}.back(high[i]), row + (d + i) * size);
      put_element(to.element, ordered_bits{}.back(low[i]), row + (to.dims + d + i) * size);
    }
  }
};

/// Records that the bounds cover every committed entry.
struct all_known {
  kvpolicy::lanes lanes;
  by_lane<int> known;
  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one = lanes.at(static_cast<int>(i));
    *known.row(one) = lanes.committed(one);
  }
};

struct forget_bounds_of_lane {
  kvpolicy::lanes lanes;
  by_lane<int> known;
  int first;  ///< the index of the sequence's first lane
  int position;
  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one = lanes.at(first + static_cast<int>(i));
    int const before = lane_entries{one, *lanes.count.row(one), 0, lanes.position.row(one)}.first_at(position);
    int& has = *known.row(one);
    if (before < has) has = before;
  }
};

/// Compares each entry of each lane with the lane of its head in the first layer of the run, one thread for each: they
/// must be the same token. The first thread of a lane also compares their counts.
struct same_entries_in_runs {
  kvpolicy::lanes lanes;
  layer_runs runs;
  device_error faults;
  template <class Block>
  KVPOLICY_HD void operator()(Block& block, std::int64_t i) const {
    auto const index = static_cast<int>(i / lanes.capacity);
    auto const e = static_cast<int>(i % lanes.capacity);
    lane const one = lanes.at(index);
    lane const first = runs.chooser_of(one);
    int const count = lanes.committed(one);
    int const wanted = lanes.committed(first);
    if (e == 0 && count != wanted) report_fault(block, faults, fault::select_count, index, count);
    if (e >= count || e >= wanted) return;
    int const mine = lanes.position.row(one)[e];
    if (mine == lanes.position.row(first)[e]) return;
    report_fault(block, faults, fault::select_position, index, mine);
  }
};

/// Writes the page count of lane i, and the position of page i.
struct count_pages_each {
  kvpolicy::lanes lanes;
  kvpolicy::lanes pages;
  int page;
  int most;
  template <class Block>
  KVPOLICY_HD void operator()(Block&, std::int64_t at) const {
    int const i = static_cast<int>(at);
    if (i < lanes.size()) *pages.count.row(lanes.at(i)) = pages_for(lanes.committed(lanes.at(i)), page);
    if (i < most) pages.position.row(lanes.at(0))[i] = i;
  }
};

}  // namespace detail

/// The bounds have the same bits as on the host, except for the payload of a NaN.
template <kernel_backend Backend>
struct implementation<ops::extend_bounds_t, Backend> {
  /// Throws if keys cannot be read, before anything changes.
  static void refuse(keys const& from) { detail::check_aligned("extend_bounds", "keys", from.rows); }

  template <class Executor>
  static void run(Executor& exec, lanes const& batch, keys const& from, page_bound_memory const& to) {
    refuse(from);
    detail::check_aligned("extend_bounds", to);
    if (is_fp8(from.rows.element)) {
      launch(exec, batch, from, to, detail::one_fp8_element{from.rows.element});
      return detail::launch_each_unless_fault(exec, batch.size(), detail::all_known{batch, to.known});
    }
    bool const fours = from.rows.contiguous() && to.dims % 4 == 0;
    detail::with_loads<4>(from.rows.element, fours ? detail::alignment_of(from.rows, true) : 1,
                          [&](auto loads) { launch(exec, batch, from, to, loads); });
    detail::launch_each_unless_fault(exec, batch.size(), detail::all_known{batch, to.known});
  }

 private:
  template <class Executor, class Loads>
  static void launch(Executor& exec, lanes const& batch, keys const& from, page_bound_memory const& to, Loads loads) {
    auto const threads = exec.threads().row;
    int const warps = threads / detail::warp_size;
    int const blocks = detail::count_blocks_per_lane(exec, batch.size(),
                                                     (detail::pages_for(batch.capacity, to.page) + warps - 1) / warps);
    detail::launch_unless_fault(exec, launch_shape{batch.size() * blocks, threads, 0},
                                detail::extend_bounds_kernel<Loads>{batch, from, to, loads, blocks});
  }
};

template <kernel_backend Backend>
struct implementation<ops::forget_bounds_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, by_lane<int> const& known, int sequence, int position) {
    if (sequence < batch.sequence_begin || sequence >= batch.sequence_end()) return;
    int const lanes_each = batch.layers() * batch.heads;
    detail::launch_each_unless_fault(
        exec, lanes_each,
        detail::forget_bounds_of_lane{batch, known, (sequence - batch.sequence_begin) * lanes_each, position});
  }
};

/// Positions are written for as many pages as a full lane has. With runs of layers that have counts or positions of
/// their own it takes a second launch, which reads every position once.
template <kernel_backend Backend>
struct implementation<ops::count_pages_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, int page, lanes const& pages,
                  layer_runs const& runs = layer_runs()) {
    if (batch.size() == 0) return;
    bool const layers_differ = batch.count.layer != 0 || batch.position.layer != 0;
    if (runs.length > 1 && layers_differ) {
      std::int64_t const entries = std::int64_t{batch.size()} * batch.capacity;
      detail::launch_each(exec, entries, detail::same_entries_in_runs{batch, runs, exec.faults()});
    }
    int const most = detail::pages_for(batch.capacity, page);
    detail::launch_each(exec, batch.size() > most ? batch.size() : most,
                        detail::count_pages_each{batch, pages, page, most});
  }
};

}  // namespace KVPOLICY_NAMESPACE
