// SPDX-License-Identifier: Apache-2.0
// Loads of a row's elements: several at a time where they are contiguous and aligned, else one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/cuda/moves/rows.hpp>
#include <kvpolicy/ops/page_bounds.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE::detail {

/// Loads of `Width` elements of one type, aligned to the size of all of them.
template <codec Element, int Width>
struct some_elements {
  static constexpr int width = Width;
  struct alignas(Element == codec::f32 ? 4 * Width : 2 * Width) raw {
    std::conditional_t<Element == codec::f32, float, std::uint16_t> of[static_cast<std::size_t>(width)];
  };
  [[nodiscard]] KVPOLICY_HD raw load(std::byte const* from) const { return *reinterpret_cast<raw const*>(from); }
  [[nodiscard]] KVPOLICY_HD static float value(raw const& loaded, int i) {
    if constexpr (Element == codec::f32) {
      return loaded.of[i];
    } else if constexpr (Element == codec::f16) {
      return from_f16(loaded.of[i]);
    } else {
      return from_bf16(loaded.of[i]);
    }
  }
};

/// Loads of one element, aligned to its size.
struct one_element {
  static constexpr int width = 1;
  codec element;
  using raw = float;
  [[nodiscard]] KVPOLICY_HD raw load(std::byte const* from) const { return element_at(element, from); }
  [[nodiscard]] KVPOLICY_HD static float value(raw loaded, int) { return loaded; }
};

/// Loads of one element of fp8, without its scale.
struct one_fp8_element {
  static constexpr int width = 1;
  codec element;
  using raw = float;
  [[nodiscard]] KVPOLICY_HD raw load(std::byte const* from) const { return any_element_at(element, from); }
  [[nodiscard]] KVPOLICY_HD static float value(raw loaded, int) { return loaded; }
};

/// Calls visit(loads), with loads of four elements of f32 or `Halves` elements of 16 bits if `alignment`, the bytes
/// that each group of so many is aligned to, allows it.
template <int Halves, class Visit>
void with_loads(codec element, int alignment, Visit const& visit) {
  if (alignment < (element == codec::f32 ? 4 : Halves) * bytes_of(element)) {
    visit(one_element{element});
  } else if (element == codec::f32) {
    visit(some_elements<codec::f32, 4>{});
  } else if (element == codec::f16) {
    visit(some_elements<codec::f16, Halves>{});
  } else {
    visit(some_elements<codec::bf16, Halves>{});
  }
}

/// The largest power of two, up to 16, that divides the address of a table's first row, its strides and `size`.
template <class T>
[[nodiscard]] int alignment_of(by_lane<T> const& rows, std::int64_t size) {
  std::int64_t const strides = (rows.sequence | rows.layer | rows.head) * static_cast<std::int64_t>(sizeof(T));
  auto const bits = reinterpret_cast<std::uintptr_t>(rows.data) | static_cast<std::uintptr_t>(strides | size);
  int most = 16;
  while (most > 1 && bits % static_cast<std::uintptr_t>(most) != 0) most /= 2;
  return most;
}

/// Refuses bounds whose elements are not aligned to their size.
template <class Byte, class Count>
void check_aligned(char const* call, page_bound_table<Byte, Count> const& of) {
  expects(alignment_of(of.rows, 16) >= bytes_of(of.element), call, "page_bounds", "misaligned rows", [&] {
    return "a device reads elements of " + std::to_string(bytes_of(of.element)) + " bytes where they are aligned";
  });
}

}  // namespace KVPOLICY_NAMESPACE::detail
