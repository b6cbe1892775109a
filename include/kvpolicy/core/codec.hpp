// SPDX-License-Identifier: Apache-2.0
// Element types of an engine's planes, and the conversion of an element to and from float.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// std::bit_cast for host and device.
template <class To, class From>
[[nodiscard]] KVPOLICY_HD constexpr To same_bits(From value) {
  return __builtin_bit_cast(To, value);
}

}  // namespace detail

/// The element type of a plane. `opaque` rows are bytes that only their engine can read (q8_0, int4 with scales in the
/// row): `channels` of such a plane are its bytes, and its rows can be moved and listed, but not scored or rotated.
///
/// `e4m3` and `e5m2` are the 8-bit floats of OCP's specification (fp8). e4m3 is the variant without infinities (float8
/// e4m3fn): bias 7, largest 448, and the magnitude 0x7F is NaN. e5m2 has bias 15, infinities, and 57344 as its largest
/// number. Keys and values may be fp8, with scales (`element_scales`); signals of a forward may not.
enum class codec : int { f32, f16, bf16, opaque, e4m3, e5m2 };

/// True for the 8-bit floats, whose values a scale multiplies.
[[nodiscard]] KVPOLICY_HD constexpr bool is_fp8(codec element) {
  return element == codec::e4m3 || element == codec::e5m2;
}

/// Bytes of one element.
[[nodiscard]] KVPOLICY_HD constexpr int bytes_of(codec element) {
  return element == codec::f32 ? 4 : element == codec::f16 || element == codec::bf16 ? 2 : 1;
}

/// The printed name of the element type.
[[nodiscard]] constexpr char const* name_of(codec element) {
  constexpr char const* names[] = {"f32", "f16", "bf16", "opaque", "e4m3", "e5m2"};
  return names[static_cast<int>(element)];
}

/// IEEE half to float, exact for every value, subnormals, infinities and NaN included. CUDA has an instruction for it,
/// which may change the payload of a NaN.
[[nodiscard]] KVPOLICY_HD constexpr float from_f16(std::uint16_t half) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    float value = 0;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
  }
#endif
  std::uint32_t const sign = (half & 0x8000u) << 16;
  std::uint32_t const magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00u) return detail::same_bits<float>(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  if (magnitude >= 0x0400u) return detail::same_bits<float>(sign | ((magnitude << 13) + 0x38000000u));
  float const tiny = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24
  return sign != 0 ? -tiny : tiny;
}

/// bfloat16 to float, exact.
[[nodiscard]] KVPOLICY_HD constexpr float from_bf16(std::uint16_t brain) {
  return detail::same_bits<float>(static_cast<std::uint32_t>(brain) << 16);
}

/// Float to bfloat16, rounded to nearest even.
[[nodiscard]] KVPOLICY_HD constexpr std::uint16_t to_bf16(float value) {
  auto const bits = detail::same_bits<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/// Float to IEEE half, rounded to nearest even.
[[nodiscard]] KVPOLICY_HD constexpr std::uint16_t to_f16(float value) {
  auto const bits = detail::same_bits<std::uint32_t>(value);
  auto const sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  std::uint32_t const magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65536 and above
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to a multiple of 2^-24
    float const sum = detail::same_bits<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (detail::same_bits<std::uint32_t>(sum) - 0x3F000000u));
  }
  std::uint32_t const rounded = magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

/// e5m2 to float, exact for every value: its bits are the upper byte of an IEEE half.
[[nodiscard]] KVPOLICY_HD constexpr float from_e5m2(std::uint8_t bits) {
  return from_f16(static_cast<std::uint16_t>(bits << 8));
}

/// e4m3 to float, exact for every value. Its exponent and fraction in a half are the value / 2^8.
[[nodiscard]] KVPOLICY_HD constexpr float from_e4m3(std::uint8_t bits) {
  std::uint32_t const magnitude = bits & 0x7Fu;
  std::uint32_t const sign = bits & 0x80u;
  if (magnitude == 0x7Fu) return detail::same_bits<float>((sign << 24) | 0x7FC00000u);
  return from_f16(static_cast<std::uint16_t>((sign << 8) | (magnitude << 7))) * 256.0f;
}

/// Float to e5m2, rounded to nearest even. As with CUDA's __NV_SATFINITE, what is beyond the largest number, infinities
/// included, becomes the largest number of its sign, and NaN stays NaN.
[[nodiscard]] KVPOLICY_HD constexpr std::uint8_t to_e5m2(float value) {
  auto const bits = detail::same_bits<std::uint32_t>(value);
  std::uint32_t const sign = (bits >> 24) & 0x80u;
  std::uint32_t const magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint8_t>(sign | 0x7Eu);
  if (magnitude >= 0x47600000u) return static_cast<std::uint8_t>(sign | 0x7Bu);  // 57344 and above
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 128 rounds to a multiple of 2^-16
    float const sum = detail::same_bits<float>(magnitude) + 128.0f;
    return static_cast<std::uint8_t>(sign | (detail::same_bits<std::uint32_t>(sum) - 0x43000000u));
  }
  return static_cast<std::uint8_t>(sign | ((magnitude - 0x38000000u + 0xFFFFFu + ((magnitude >> 21) & 1u)) >> 21));
}

/// Float to e4m3, rounded to nearest even. As with CUDA's __NV_SATFINITE, what is beyond 448, infinities included,
/// becomes 448 of its sign, and NaN stays NaN.
[[nodiscard]] KVPOLICY_HD constexpr std::uint8_t to_e4m3(float value) {
  auto const bits = detail::same_bits<std::uint32_t>(value);
  std::uint32_t const sign = (bits >> 24) & 0x80u;
  std::uint32_t const magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint8_t>(sign | 0x7Fu);
  if (magnitude >= 0x43E00000u) return static_cast<std::uint8_t>(sign | 0x7Eu);  // 448 and above
  if (magnitude < 0x3C800000u) {  // below 2^-6: adding 2^14 rounds to a multiple of 2^-9
    float const sum = detail::same_bits<float>(magnitude) + 16384.0f;
    return static_cast<std::uint8_t>(sign | (detail::same_bits<std::uint32_t>(sum) - 0x46800000u));
  }
  return static_cast<std::uint8_t>(sign | ((magnitude - 0x3C000000u + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20));
}

namespace detail {

[[nodiscard]] KVPOLICY_HD constexpr float from_fp8(codec element, std::uint8_t bits) {
  return element == codec::e4m3 ? from_e4m3(bits) : from_e5m2(bits);
}
[[nodiscard]] KVPOLICY_HD constexpr std::uint8_t to_fp8(codec element, float value) {
  return element == codec::e4m3 ? to_e4m3(value) : to_e5m2(value);
}

}  // namespace detail

/// The value that an element of this type has after a float is stored in it: the float, rounded to nearest even, and
/// for fp8 the largest number of its sign if it is beyond that.
[[nodiscard]] KVPOLICY_HD constexpr float rounded_to(codec element, float value) {
  if (is_fp8(element)) return detail::from_fp8(element, detail::to_fp8(element, value));
  return element == codec::f16 ? from_f16(to_f16(value)) : element == codec::bf16 ? from_bf16(to_bf16(value)) : value;
}

/// Stores a float as an element, rounded as `rounded_to` says. The element type must not be opaque.
KVPOLICY_HD inline void store(codec element, float value, std::byte* to) {
  if (element == codec::f32) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  if (is_fp8(element)) {
    *to = static_cast<std::byte>(detail::to_fp8(element, value));
    return;
  }
  std::uint16_t const raw = element == codec::f16 ? to_f16(value) : to_bf16(value);
  std::memcpy(to, &raw, sizeof raw);
}

/// The element stored at `from`, as a float, without a scale. The element type must not be opaque.
[[nodiscard]] KVPOLICY_HD inline float load(codec element, std::byte const* from) {
  if (element == codec::f32) {
    float value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  if (is_fp8(element)) return detail::from_fp8(element, static_cast<std::uint8_t>(*from));
  std::uint16_t raw = 0;
  std::memcpy(&raw, from, sizeof raw);
  return element == codec::f16 ? from_f16(raw) : from_bf16(raw);
}

}  // namespace KVPOLICY_NAMESPACE
