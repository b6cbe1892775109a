// SPDX-License-Identifier: Apache-2.0
// Loads of a row's elements: several at a time where they are contiguous and aligned, else one at a time; and loads of
// pages' bounds ahead of their use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/cuda/moves/rows.hpp>
#include <kvpolicy/ops/cuda/run/async_ring.hpp>
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

/// Loads of one element, aligned to its size. Elements of keys may be fp8, and are loaded without their scale.
template <bool OfKeys>
struct one_element {
  static constexpr int width = 1;
  codec element;
  using raw = float;
  [[nodiscard]] KVPOLICY_HD raw load(std::byte const* from) const {
    return OfKeys ? any_element_at(element, from) : element_at(element, from);
  }
  [[nodiscard]] KVPOLICY_HD static float value(raw loaded, int) { return loaded; }
};

/// Calls visit(loads), with loads of four elements of f32 or `Halves` elements of 16 bits if `alignment`, the bytes
/// that each group of so many is aligned to, allows it.
template <int Halves, bool OfKeys = false, class Visit>
void with_loads(codec element, int alignment, Visit const& visit) {
  if (alignment < (element == codec::f32 ? 4 : Halves) * bytes_of(element)) {
    visit(one_element<OfKeys>{element});
  } else if (element == codec::f32) {
    visit(some_elements<codec::f32, 4>{});
  } else if (element == codec::f16) {
    visit(some_elements<codec::f16, Halves>{});
  } else {
    visit(some_elements<codec::bf16, Halves>{});
  }
}
/// The same for keys. Those of fp8 are loaded one by one.
template <int Halves, class Visit>
void with_loads(plane const& keys, Visit const& visit) {
  int const each = keys.element == codec::f32 ? 4 : Halves;
  bool const whole = keys.contiguous() && keys.channels % each == 0 && !is_fp8(keys.element);
  with_loads<Halves, true>(keys.element, whole ? alignment_of(keys, true) : 0, visit);
}

/// The alignment of a table's first row, its strides and `size`.
template <class T>
[[nodiscard]] int alignment_of(by_lane<T> const& rows, std::int64_t size) {
  std::int64_t const strides = (rows.sequence | rows.layer | rows.head) * static_cast<std::int64_t>(sizeof(T));
  return alignment_of_bits(reinterpret_cast<std::uintptr_t>(rows.data) | static_cast<std::uintptr_t>(strides | size));
}
template <class Byte, class Count>
void check_aligned(char const* call, page_bound_table<Byte, Count> const& of) {
  expect_aligned(call, "page_bounds", alignment_of(of.rows, 16), of.element);
}

/// The loads of a warp's bounds: of `Pages` pages at once, and of as many of their channels as the warp loads at once.
/// Loads of sixteen bytes are begun three such steps ahead.
template <int Pages, class Loads>
class bound_loads {
 public:
  using raw = typename Loads::raw;
  using ring = async_ring<3, Pages>;
  static constexpr bool ahead = sizeof(raw) == sizeof(typename ring::piece);

  /// `bounds`: of the first page; `bytes`: of the bounds of a page, and of an element.
  KVPOLICY_HD bound_loads(Loads const& loads, ring const& at, std::byte const* bounds, int bytes, int of_element)
      : loads_(loads), ring_(at), bounds_(bounds), bytes_(bytes), of_thread_(ahead ? 16 : Loads::width * of_element) {}

  /// Begins with the pages of a range, of which the warp takes every `step`-th group.
  template <class Block>
  KVPOLICY_HD void begin(Block& block, ordinal_range pages, int step) {
    pages_ = pages;
    step_ = step;
    part_ = 0;
    stage_ = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int i = 0; ahead && i < ring::stages; ++i) fill(block);  // unrolled, addresses would take too many registers
  }
  /// The next bounds.
  template <class Block>
  KVPOLICY_HD void take(Block& block, raw (&to)[static_cast<std::size_t>(Pages)]) {
    if constexpr (ahead) {
      ring_.wait(block);
      for (int n = 0; n < Pages; ++n) to[n] = ring_.template taken<raw>(stage_, n);
    } else {
      for (int n = 0; n < Pages && has(block); ++n) to[n] = loads_.load(place(block, n));
      advance();
    }
  }
  /// Once they are used.
  template <class Block>
  KVPOLICY_HD void release(Block& block) {
    if (ahead) fill(block);
  }

 private:
  template <class Block>
  [[nodiscard]] KVPOLICY_HD bool has(Block& block) const {
    return pages_.begin < pages_.end && part_ + lane_id(block) * of_thread_ < bytes_;
  }
  template <class Block>
  [[nodiscard]] KVPOLICY_HD std::byte const* place(Block& block, int n) const {
    int const page = min_op{}(pages_.begin + n, pages_.end - 1);
    return bounds_ + std::int64_t{page} * bytes_ + (part_ + lane_id(block) * of_thread_);
  }
  KVPOLICY_HD void advance() {
    part_ += warp_size * of_thread_;
    if (part_ < bytes_) return;
    part_ = 0;
    pages_.begin += step_;
  }
  template <class Block>
  KVPOLICY_HD void fill(Block& block) {
    if (has(block)) ring_.fill(block, stage_, [&](int n) { return place(block, n); });
    block.commit_loads();
    stage_ = stage_ + 1 < ring::stages ? stage_ + 1 : 0;
    advance();
  }

  Loads const& loads_;
  ring const& ring_;
  std::byte const* bounds_;
  int bytes_;
  int of_thread_;
  ordinal_range pages_{};  ///< of the loads that come next
  int step_ = 1;
  int part_ = 0;  ///< where their part of a page begins, in bytes
  int stage_ = 0;
};

}  // namespace KVPOLICY_NAMESPACE::detail
