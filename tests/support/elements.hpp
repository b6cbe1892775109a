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

/// The number that is stored at `from`, without the library's conversions.
inline double decoded(kvpolicy::codec element, std::byte const* from) {
  if (element == kvpolicy::codec::f32) {
    float value = 0;
    std::memcpy(&value, from, sizeof value);
    return static_cast<double>(value);
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
  std::uint16_t const bits = element == kvpolicy::codec::f16 ? kvpolicy::to_f16(single) : kvpolicy::to_bf16(single);
  std::memcpy(to, &bits, sizeof bits);
}

}  // namespace kvpolicy_test
