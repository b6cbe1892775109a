// SPDX-License-Identifier: Apache-2.0
// Device implementation of record_key_sums: each thread adds up a few channels of one entry over all lanes.
#pragma once

#include <cstddef>
#include <kvpolicy/ops/cuda/moves/rows.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/cuda/run/page_loads.hpp>
#include <kvpolicy/ops/key_sums.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Adds up the channels that one load has of an entry over the lanes of its sequence, in order, so that each sum always
/// has the same bits.
template <class Loads>
struct key_adder {
  kvpolicy::lanes lanes;
  row_view from;
  Loads loads;

  static constexpr int width = Loads::width;
  static constexpr int ahead = 4;  ///< loads of rows that are in flight at once

  /// Behind the last lane, the last one is loaded again and not added.
  KVPOLICY_HD void add(int sequence, int entry, int first, float* sum) const {
    int const lanes_here = lanes.layers() * lanes.heads;
    for (int i = 0; i < lanes_here; i += ahead) {
      typename Loads::raw part[ahead];
      for (int j = 0; j < ahead; ++j) {
        int const at = i + j < lanes_here ? i + j : lanes_here - 1;
        lane const one{lanes.sequence_begin + sequence, lanes.layer_begin + at / lanes.heads, at % lanes.heads};
        part[j] = loads.load(from.row(one, entry) + first * from.rows.channel_stride);
        if constexpr (width == 1) part[j] *= from.scale(one, entry);
      }
      for (int j = 0; j < ahead; ++j) {
        for (int e = 0; e < width; ++e) sum[e] += i + j < lanes_here ? Loads::value(part[j], e) : 0.0f;
      }
    }
  }
};

/// Records a few channels of an entry that have no sum yet, unless a lane does not have the entry.
template <class Loads>
struct record_key_sums_body {
  key_adder<Loads> adder;
  key_sums to;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    kvpolicy::lanes const& lanes = adder.lanes;
    int const pieces = adder.from.rows.channels / adder.width;
    int const first = static_cast<int>(i % pieces) * adder.width;
    int const entry = static_cast<int>(i / pieces % lanes.capacity);
    int const sequence = static_cast<int>(i / pieces / lanes.capacity);
    if (!in_all_lanes(sequence, entry) || key_sums::is_recorded(*to.at(lanes, sequence, entry, first))) return;
    float sum[static_cast<std::size_t>(key_adder<Loads>::width)] = {};
    adder.add(sequence, entry, first, sum);
    for (int e = 0; e < adder.width; ++e) *to.at(lanes, sequence, entry, first + e) = key_sums::recorded(sum[e]);
  }

 private:
  KVPOLICY_HD bool in_all_lanes(int sequence, int entry) const {
    kvpolicy::lanes const& lanes = adder.lanes;
    for (int layer = lanes.layer_begin; layer < lanes.layer_end; ++layer) {
      for (int head = 0; head < lanes.heads; ++head) {
        if (entry >= lanes.committed({lanes.sequence_begin + sequence, layer, head})) return false;
      }
    }
    return true;
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::record_key_sums_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, keys const& from, lanes const& batch, key_sums const& to) {
    detail::check_aligned("record_key_sums", "keys", from.rows);
    if (!to.fits(batch, from.rows.channels)) return;
    detail::with_loads<8>(from.rows, [&](auto loads) {
      std::int64_t const all = std::int64_t{batch.sequences} * batch.capacity * (from.rows.channels / loads.width);
      detail::launch_each(exec, all, detail::record_key_sums_body<decltype(loads)>{{batch, from, loads}, to});
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
