// SPDX-License-Identifier: Apache-2.0
// Keys as query rows, for products of keys with keys.
#pragma once

#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/host/attention/row_block.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The keys of `count` entries of a lane as query rows, which are the same for every lane. Entry i is which(i); `to`
/// has memory for their floats.
template <class Which>
query_view keys_as_rows(keys const& from, lane one, int count, Which const& which, float* to) {
  int const dims = from.rows.channels;
  for (int i = 0; i < count; ++i) {
    float* const row = to + std::ptrdiff_t{i} * dims;
    load_row(from.rows.element, from.row(one, which(i)), from.rows.channel_stride, dims, row);
    if (from.rows.scales.data != nullptr) scale_row(from.scale(one, which(i)), dims, row);
  }
  query_view made;
  made.base = reinterpret_cast<std::byte const*>(to);
  made.dims = dims;
  made.row = std::int64_t{dims} * 4;
  made.heads = 1;
  made.rows = count;
  return made;
}

}  // namespace KVPOLICY_NAMESPACE::detail
