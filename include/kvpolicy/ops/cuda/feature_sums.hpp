// SPDX-License-Identifier: Apache-2.0
// Device implementation of feature_sums: each thread adds up a few channels of one entry over all lanes.
#pragma once

#include <cstddef>
#include <kvpolicy/ops/cuda/attention/query_rows.hpp>
#include <kvpolicy/ops/cuda/key_sums.hpp>
#include <kvpolicy/ops/cuda/moves/rows.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/cuda/run/page_loads.hpp>
#include <kvpolicy/ops/feature_sums.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Records a fault for lanes that have another number of entries than the first lane of their sequence.
struct unequal_counts_body {
  kvpolicy::lanes lanes;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, device_error faults, std::int64_t i) const {
    lane const one = lanes.at(static_cast<int>(i));
    int const count = lanes.committed(one);
    bool const equal = count == lanes.committed({one.sequence, lanes.layer_begin, 0});
    if (!equal) report_fault(block, faults, fault::unequal_counts, i, count);
  }
};

/// Writes a few channels, from `first` on, of entry `row - 1`, recorded or summed, or of the query memory if `row` is
/// 0.
template <class Loads>
struct feature_sums_body {
  key_adder<Loads> adder;
  query_view memory;
  key_sums recorded;  ///< `each` is 0: nothing is recorded
  token_features out;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    kvpolicy::lanes const& lanes = adder.lanes;
    int const pieces = out.dims / adder.width;
    int const first = static_cast<int>(i % pieces) * adder.width;
    int const row = static_cast<int>(i / pieces % (lanes.capacity + 1));
    int const sequence = static_cast<int>(i / pieces / (lanes.capacity + 1));
    float sum[static_cast<std::size_t>(key_adder<Loads>::width)] = {};
    if (row == 0) {
      add_memory(sequence, first, sum);
    } else if (row - 1 < lanes.committed({lanes.sequence_begin + sequence, lanes.layer_begin, 0})) {
      if (!read_recorded(sequence, row - 1, first, sum)) adder.add(sequence, row - 1, first, sum);
    }
    float* const to = out.row(sequence, row) + first;
    for (int e = 0; e < adder.width; ++e) to[e] = sum[e];
  }

 private:
  KVPOLICY_HD void add_memory(int sequence, int first, float* sum) const {
    kvpolicy::lanes const& lanes = adder.lanes;
    for (int layer = lanes.layer_begin; layer < lanes.layer_end; ++layer) {
      for (int head = 0; head < memory.heads; ++head) {
        std::byte const* const at = memory.at({lanes.sequence_begin + sequence, layer, 0}, head, 0);
        for (int e = 0; e < adder.width; ++e)
          sum[e] += element_at(memory.element, at + (first + e) * bytes_of(memory.element));
      }
    }
  }

  KVPOLICY_HD bool read_recorded(int sequence, int entry, int first, float* sum) const {
    if (recorded.each == 0 || !key_sums::is_recorded(*recorded.at(adder.lanes, sequence, entry, first))) return false;
    for (int e = 0; e < adder.width; ++e) sum[e] += *recorded.at(adder.lanes, sequence, entry, first + e);
    return true;
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::feature_sums_t, Backend> {
  /// If the lanes of a sequence have different numbers of entries, a fault is recorded, which `check()` of the executor
  /// throws, and nothing is written.
  template <class Executor>
  static void run(Executor& exec, keys const& from, query_view const& memory, key_sums const& recorded,
                  score_view const& scores, token_features const& out) {
    lanes const& batch = scores.lanes;
    detail::check_aligned("feature_sums", "keys", from.rows);
    detail::check_aligned("feature_sums", memory, "memory");
    detail::launch_check(exec, batch.size(), detail::unequal_counts_body{batch});
    key_sums const used = recorded.fits(batch, out.dims) ? recorded : key_sums{};
    detail::with_loads<8>(from.rows, [&](auto loads) {
      std::int64_t const all = std::int64_t{batch.sequences} * (batch.capacity + 1) * (out.dims / loads.width);
      detail::launch_each_unless_fault(
          exec, all, detail::feature_sums_body<decltype(loads)>{{batch, from, loads}, memory, used, out});
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
