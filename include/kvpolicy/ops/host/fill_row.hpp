// SPDX-License-Identifier: Apache-2.0
// Host implementation of fill_row.
#pragma once

#include <cstdint>
#include <cstring>
#include <kvpolicy/ops/fill_row.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::fill_row_t, host> {
  static void run(host_executor&, cache const& in, place at, float key, float value) {
    fill_plane(in, in.k, at, key);
    if (!detail::is_latent(in)) fill_plane(in, in.v, at, value);
  }

 private:
  static void fill_plane(cache const& in, plane const& rows, place at, float value) {
    constexpr int ahead = 8;  // heads, whose rows are mostly far apart
    std::byte element[8] = {};
    store(rows.element, value, element);
    auto const row_of = [&](int i) { return rows.row(i / in.shape.kv_heads, at, i % in.shape.kv_heads); };
    int const all = in.shape.layers * in.shape.kv_heads;
    int const bytes = rows.contiguous() ? rows.channels * bytes_of(rows.element) : 0;
    for (int i = 0; i < all; ++i) {
      if (i + ahead < all) {
        std::byte* const next = row_of(i + ahead);
        for (int byte = 0; byte < bytes; byte += 64) __builtin_prefetch(next + byte, 1);
      }
      fill(rows, row_of(i), element);
    }
  }
  static void fill(plane const& rows, std::byte* row, std::byte const* element) {
    auto const width = static_cast<std::size_t>(bytes_of(rows.element));
    if (!rows.contiguous()) {
      for (int d = 0; d < rows.channels; ++d) std::memcpy(row + d * rows.channel_stride, element, width);
    } else if (width == 4) {
      repeat<std::uint32_t>(element, rows.channels, row);
    } else if (width == 2) {
      repeat<std::uint16_t>(element, rows.channels, row);
    } else {
      repeat<std::uint8_t>(element, rows.channels, row);
    }
  }
  template <class Bits>
  static void repeat(std::byte const* element, int dims, std::byte* row) {
    Bits bits;
    std::memcpy(&bits, element, sizeof bits);
    for (int d = 0; d < dims; ++d) std::memcpy(row + static_cast<std::size_t>(d) * sizeof bits, &bits, sizeof bits);
  }
};

}  // namespace KVPOLICY_NAMESPACE
