// SPDX-License-Identifier: Apache-2.0
// Elements of rows as floats on a device, and the alignment of planes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/signals.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// Loads an element of 2 or 4 bytes, which is aligned to its size, as a float.
[[nodiscard]] KVPOLICY_HD inline float element_at(codec element, std::byte const* from) {
  if (element == codec::f32) return *reinterpret_cast<float const*>(from);
  std::uint16_t const raw = *reinterpret_cast<std::uint16_t const*>(from);
  return element == codec::f16 ? from_f16(raw) : from_bf16(raw);
}

/// The same for keys and values, which may be fp8.
[[nodiscard]] KVPOLICY_HD inline float any_element_at(codec element, std::byte const* from) {
  return is_fp8(element) ? from_fp8(element, static_cast<std::uint8_t>(*from)) : element_at(element, from);
}

/// Sixteen bytes of a row, which one load reads.
struct alignas(16) row_piece {
  std::uint32_t word[4];
};

/// The two numbers of 16 bits in a word, the first in its lower bits.
struct two_numbers {
  float first, second;
};
[[nodiscard]] KVPOLICY_HD inline two_numbers halves_of(codec element, std::uint32_t word) {
  auto const low = static_cast<std::uint16_t>(word);
  auto const high = static_cast<std::uint16_t>(word >> 16);
  bool const half = element == codec::f16;
  return {half ? from_f16(low) : from_bf16(low), half ? from_f16(high) : from_bf16(high)};
}

/// Stores a float as an element of 2 or 4 bytes, which is aligned to its size. Rounds to nearest even.
KVPOLICY_HD inline void put_element(codec element, float value, std::byte* to) {
  if (element == codec::f32) {
    *reinterpret_cast<float*>(to) = value;
  } else {
    *reinterpret_cast<std::uint16_t*>(to) = element == codec::f16 ? to_f16(value) : to_bf16(value);
  }
}

/// The largest power of two, up to 16, that divides an address and all strides, whose bits are in `bits`.
[[nodiscard]] constexpr int alignment_of_bits(std::uintptr_t bits) {
  int most = 16;
  while (most > 1 && bits % static_cast<std::uintptr_t>(most) != 0) most /= 2;
  return most;
}
/// Throws unless elements are aligned to their size, since a device loads each of them at once.
inline void expect_aligned(char const* call, char const* name, int alignment, codec element) {
  expects(alignment >= bytes_of(element), call, name, "misaligned rows", [&] {
    return "a device reads elements of " + std::to_string(bytes_of(element)) + " bytes where they are aligned";
  });
}

/// The alignment of a plane's address and its strides; `whole_rows` leaves out the stride between elements. For planes
/// whose base addresses are in a table, the table's promised alignment stands for the address.
[[nodiscard]] inline int alignment_of(plane const& rows, bool whole_rows) {
  auto bits = reinterpret_cast<std::uintptr_t>(rows.base);
  if (rows.bases.data != nullptr) {
    bits = static_cast<std::uintptr_t>(rows.bases.alignment > 0 ? rows.bases.alignment : bytes_of(rows.element));
  }
  std::int64_t const strides = rows.layer_stride | rows.unit_stride | rows.token_stride | rows.head_stride |
                               (whole_rows ? 0 : rows.channel_stride);
  return alignment_of_bits(bits | static_cast<std::uintptr_t>(strides));
}
inline void check_aligned(char const* call, char const* name, plane const& rows) {
  expect_aligned(call, name, alignment_of(rows, false), rows.element);
}

}  // namespace KVPOLICY_NAMESPACE::detail
