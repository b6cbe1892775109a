// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <kvpolicy/core/codec.hpp>
#include <limits>

namespace kvpolicy_test {

/// What a 16-bit number with `exponent_bits` of exponent means, by the definition of IEEE 754.
inline double decoded_half(std::uint16_t bits, int exponent_bits) {
  int const fraction_bits = 15 - exponent_bits;
  int const bias = (1 << (exponent_bits - 1)) - 1;
  int const exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  int const fraction = bits & ((1 << fraction_bits) - 1);
  double const sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

/// What an 8-bit float with `exponent_bits` of exponent means, by OCP's definition: e4m3 has no infinities, and its NaN
/// is all ones.
inline double decoded_fp8(std::uint8_t bits, int exponent_bits) {
  if (exponent_bits == 5) return decoded_half(static_cast<std::uint16_t>(bits << 8), 5);
  int const exponent = (bits >> 3) & 15;
  int const fraction = bits & 7;
  double const sign = (bits & 0x80) != 0 ? -1.0 : 1.0;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
  return sign * (exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10));
}

/// The number that is stored at `from`, without the library's conversions and without a scale.
inline double decoded(kvpolicy::codec element, std::byte const* from) {
  if (element == kvpolicy::codec::f32) {
    float value = 0;
    std::memcpy(&value, from, sizeof value);
    return static_cast<double>(value);
  }
  if (kvpolicy::is_fp8(element)) {
    return decoded_fp8(static_cast<std::uint8_t>(*from), element == kvpolicy::codec::e4m3 ? 4 : 5);
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return decoded_half(bits, element == kvpolicy::codec::f16 ? 5 : 8);
}

/// Stores `value`, rounded to what the element can hold.
inline void encode(kvpolicy::codec element, double value, std::byte* to) {
  auto const single = static_cast<float>(value);
  if (element == kvpolicy::codec::f32) {
    std::memcpy(to, &single, sizeof single);
    return;
  }
  if (kvpolicy::is_fp8(element)) {
    auto const bits = element == kvpolicy::codec::e4m3 ? kvpolicy::to_e4m3(single) : kvpolicy::to_e5m2(single);
    *to = static_cast<std::byte>(bits);
    return;
  }
  std::uint16_t const bits = element == kvpolicy::codec::f16 ? kvpolicy::to_f16(single) : kvpolicy::to_bf16(single);
  std::memcpy(to, &bits, sizeof bits);
}

}  // namespace kvpolicy_test
