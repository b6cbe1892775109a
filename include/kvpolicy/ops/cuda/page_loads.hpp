// Loads of a row's elements: four at a time where they are contiguous and aligned, else one at a time.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/cuda/rows.hpp>
#include <kvpolicy/ops/page_bounds.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE::detail {

/// Loads of four elements of one type, aligned to the size of the four.
template <codec Element>
struct four_elements {
  static constexpr int width = 4;
  struct alignas(Element == codec::f32 ? 16 : 8) raw {
    std::conditional_t<Element == codec::f32, float, std::uint16_t> of[width];
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

/// Calls visit(loads), with loads of four elements if `alignment`, the bytes that each group of four is aligned to,
/// allows it.
template <class Visit>
void with_loads(codec element, int alignment, Visit const& visit) {
  if (alignment < 4 * bytes_of(element)) {
    visit(one_element{element});
  } else if (element == codec::f32) {
    visit(four_elements<codec::f32>{});
  } else if (element == codec::f16) {
    visit(four_elements<codec::f16>{});
  } else {
    visit(four_elements<codec::bf16>{});
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
