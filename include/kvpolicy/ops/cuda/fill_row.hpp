// SPDX-License-Identifier: Apache-2.0
// Device implementation of fill_row.
#pragma once

#include <kvpolicy/ops/cuda/moves/move_lists.hpp>
#include <kvpolicy/ops/cuda/moves/rows.hpp>
#include <kvpolicy/ops/fill_row.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Fills a row, one thread for each channel of each head of each layer. Heads that share a pool write the same value.
struct fill_row_body {
  plane rows;
  place at;
  int heads;
  float value;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    auto const d = static_cast<int>(i % rows.channels);
    auto const row = static_cast<int>(i / rows.channels);
    std::byte* const to = rows.row(row / heads, at, row % heads) + d * rows.channel_stride;
    if (is_fp8(rows.element)) {
      *to = std::byte{};  // 0 is the only number that fp8 rows are filled with
    } else {
      put_element(rows.element, value, to);
    }
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::fill_row_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, cache const& in, place at, float key, float value) {
    detail::check_aligned("fill_row", "k", in.k);
    if (!detail::is_latent(in)) detail::check_aligned("fill_row", "v", in.v);
    int const rows = in.shape.layers * in.shape.kv_heads;
    for (plane const* each : {&in.k, &in.v}) {
      if (each == &in.v && detail::is_latent(in)) continue;
      detail::fill_row_body const body{*each, at, in.shape.kv_heads, each == &in.k ? key : value};
      detail::launch_each_unless_fault(exec, std::int64_t{rows} * each->channels, body);
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
