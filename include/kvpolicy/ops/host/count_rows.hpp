// SPDX-License-Identifier: Apache-2.0
// Host implementation of count_rows.
#pragma once

#include <kvpolicy/ops/count_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/listing.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::count_rows_t, host> {
  static void run(host_executor& exec, lanes const& batch, row_positions const& from, counted_rows const& to) {
    auto const each = [&](int i, int) {
      lane const one{batch.sequence_begin + i, batch.layer_begin, 0};
      int const* const position = from.position.row(one);
      int const* const index = to.index.row(one);
      int count = detail::listing_of_isa[exec.simd_level()].rows(position, from.valid(one), 0, to.index.row(one));
      int const end = from.end(batch, one);
      while (count > 0 && position[index[count - 1]] >= end) --count;  // positions of rows that count ascend
      *to.number.row(one) = count;
    };
    int const sequences = batch.sequence_end() - batch.sequence_begin;
    constexpr std::int64_t worth_waking = 1 << 16;  // rows: below, other threads would only cost time
    if (std::int64_t{sequences} * from.rows >= worth_waking) return exec.for_each(sequences, each);
    for (int i = 0; i < sequences; ++i) each(i, 0);
  }
};

}  // namespace KVPOLICY_NAMESPACE
