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

/// The element type of a plane. `opaque` rows are bytes that only their engine can read (fp8, q8_0, int4 with scales in
/// the row): `dims` of such a plane is in bytes, and its rows can be moved and listed, but not scored or rotated.
enum class codec : int { f32, f16, bf16, opaque };

/// Bytes of one element.
[[nodiscard]] KVPOLICY_HD constexpr int bytes_of(codec element) {
  return element == codec::f32 ? 4 : element == codec::opaque ? 1 : 2;
}

/// The printed name of the element type.
[[nodiscard]] constexpr char const* name_of(codec element) {
  constexpr char const* names[] = {"f32", "f16", "bf16", "opaque"};
  return names[static_cast<int>(element)];
}

/// IEEE half to float, exact for every value, subnormals, infinities and NaN included.
[[nodiscard]] KVPOLICY_HD constexpr float from_f16(std::uint16_t half) {
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

/// The value that an element of this type has after a float is stored in it: the float, rounded to nearest even.
[[nodiscard]] KVPOLICY_HD constexpr float rounded_to(codec element, float value) {
  return element == codec::f16 ? from_f16(to_f16(value)) : element == codec::bf16 ? from_bf16(to_bf16(value)) : value;
}

/// Stores a float as an element, rounded to nearest even. The element type must not be opaque.
KVPOLICY_HD inline void store(codec element, float value, std::byte* to) {
  if (element == codec::f32) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  std::uint16_t const raw = element == codec::f16 ? to_f16(value) : to_bf16(value);
  std::memcpy(to, &raw, sizeof raw);
}

/// The element stored at `from`, as a float. The element type must not be opaque.
[[nodiscard]] KVPOLICY_HD inline float load(codec element, std::byte const* from) {
  if (element == codec::f32) {
    float value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::uint16_t raw = 0;
  std::memcpy(&raw, from, sizeof raw);
  return element == codec::f16 ? from_f16(raw) : from_bf16(raw);
}

}  // namespace KVPOLICY_NAMESPACE
