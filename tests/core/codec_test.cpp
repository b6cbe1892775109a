// SPDX-License-Identifier: Apache-2.0
// Conversions of elements, for every 16-bit number and every point half-way between two of them.

#include "support/test.hpp"

using namespace kvpolicy_test;

namespace {

bool same(float a, double b) {
  return std::isnan(b) ? std::isnan(a) : static_cast<double>(a) == b && std::signbit(a) == std::signbit(b);
}

/// Checks rounding between every two neighbours of one sign: to the nearer, and at the middle to the even one.
template <class Encode>
void check_rounding(int exponent_bits, Encode encode) {
  int const infinite = ((1 << exponent_bits) - 1) << (15 - exponent_bits);
  for (int low = 0; low + 1 < infinite; ++low) {
    auto const below = static_cast<std::uint16_t>(low);
    auto const above = static_cast<std::uint16_t>(low + 1);
    double const sum = decoded_half(below, exponent_bits) + decoded_half(above, exponent_bits);
    auto const middle = static_cast<float>(sum / 2);
    REQUIRE(static_cast<double>(middle) == sum / 2);
    for (int const sign : {0, 0x8000}) {
      float const factor = sign != 0 ? -1.0f : 1.0f;
      REQUIRE(encode(factor * static_cast<float>(decoded_half(below, exponent_bits))) == (low | sign));
      REQUIRE(encode(factor * middle) == ((low % 2 == 0 ? low : low + 1) | sign));
      REQUIRE(encode(factor * std::nextafter(middle, 0.0f)) == (low | sign));
      REQUIRE(encode(factor * std::nextafter(middle, std::numeric_limits<float>::infinity())) == ((low + 1) | sign));
    }
  }
}

/// Checks the same for an 8-bit float whose largest number is `largest`: all between two neighbours up to it, and what
/// is beyond.
template <class Encode>
void check_fp8_rounding(int exponent_bits, int largest, Encode encode) {
  for (int low = 0; low < largest; ++low) {
    double const below = decoded_fp8(static_cast<std::uint8_t>(low), exponent_bits);
    double const above = decoded_fp8(static_cast<std::uint8_t>(low + 1), exponent_bits);
    auto const middle = static_cast<float>((below + above) / 2);
    for (int const sign : {0, 0x80}) {
      float const factor = sign != 0 ? -1.0f : 1.0f;
      REQUIRE(encode(factor * static_cast<float>(below)) == (low | sign));
      REQUIRE(encode(factor * middle) == ((low % 2 == 0 ? low : low + 1) | sign));
      REQUIRE(encode(factor * std::nextafter(middle, 0.0f)) == (low | sign));
      REQUIRE(encode(factor * std::nextafter(middle, 1e9f)) == ((low + 1) | sign));
    }
  }
  auto const most = static_cast<float>(decoded_fp8(static_cast<std::uint8_t>(largest), exponent_bits));
  for (float const beyond : {most, most * 1.0625f, most * 2, 1e30f, std::numeric_limits<float>::infinity()}) {
    CHECK(encode(beyond) == largest);
    CHECK(encode(-beyond) == (largest | 0x80));
  }
}

}  // namespace

TEST_SUITE("core/codec") {
  TEST_CASE("every 8-bit float reads as OCP's specification defines it, and is stored as the bits that it was") {
    for (int i = 0; i < 256; ++i) {
      auto const bits = static_cast<std::uint8_t>(i);
      REQUIRE(same(kv::from_e4m3(bits), decoded_fp8(bits, 4)));
      REQUIRE(same(kv::from_e5m2(bits), decoded_fp8(bits, 5)));
      auto const stored = static_cast<std::byte>(bits);
      REQUIRE(same(kv::load(kv::codec::e4m3, &stored), decoded_fp8(bits, 4)));
      REQUIRE(same(kv::load(kv::codec::e5m2, &stored), decoded_fp8(bits, 5)));
      if (std::isfinite(decoded_fp8(bits, 4))) REQUIRE(kv::to_e4m3(kv::from_e4m3(bits)) == bits);
      if (std::isfinite(decoded_fp8(bits, 5))) REQUIRE(kv::to_e5m2(kv::from_e5m2(bits)) == bits);
    }
    CHECK(kv::from_e4m3(0x7E) == 448.0f);
    CHECK(kv::from_e4m3(0x01) == 0.001953125f);
    CHECK(std::isnan(kv::from_e4m3(0xFF)));
    CHECK(kv::from_e5m2(0x7B) == 57344.0f);
    CHECK(kv::from_e5m2(0xFC) == -std::numeric_limits<float>::infinity());
    CHECK(kv::bytes_of(kv::codec::e4m3) == 1);
    CHECK(kv::name_of(kv::codec::e5m2) == std::string_view("e5m2"));
  }

  TEST_CASE("floats round to the nearest 8-bit float, ties to even, and saturate") {
    check_fp8_rounding(4, 0x7E, [](float value) { return kv::to_e4m3(value); });
    check_fp8_rounding(5, 0x7B, [](float value) { return kv::to_e5m2(value); });
    CHECK(kv::to_e4m3(-std::numeric_limits<float>::denorm_min()) == 0x80);
    CHECK(kv::to_e5m2(-std::numeric_limits<float>::denorm_min()) == 0x80);
  }

  TEST_CASE("every half and every bfloat16 reads as IEEE 754 defines it") {
    for (int bits = 0; bits < 65536; ++bits) {
      REQUIRE(same(kv::from_f16(static_cast<std::uint16_t>(bits)), decoded_half(static_cast<std::uint16_t>(bits), 5)));
      REQUIRE(same(kv::from_bf16(static_cast<std::uint16_t>(bits)), decoded_half(static_cast<std::uint16_t>(bits), 8)));
    }
  }

  TEST_CASE("floats round to the nearest half, ties to even, subnormals included") {
    check_rounding(5, [](float value) { return kv::to_f16(value); });
    CHECK(kv::to_f16(65504.0f) == 0x7BFF);
    CHECK(kv::to_f16(std::nextafter(65520.0f, 0.0f)) == 0x7BFF);
    CHECK(kv::to_f16(65520.0f) == 0x7C00);
    CHECK(kv::to_f16(-1e30f) == 0xFC00);
    CHECK(kv::to_f16(1e-30f) == 0);
    CHECK(kv::to_f16(-std::numeric_limits<float>::denorm_min()) == 0x8000);
  }

  TEST_CASE("floats round to the nearest bfloat16, ties to even") {
    check_rounding(8, [](float value) { return kv::to_bf16(value); });
    CHECK(kv::to_bf16(std::numeric_limits<float>::max()) == 0x7F80);
    CHECK(kv::to_bf16(-std::numeric_limits<float>::infinity()) == 0xFF80);
  }

  TEST_CASE("NaN stays NaN, whatever its payload") {
    for (std::uint32_t const bits : {0x7F800001u, 0x7FC00000u, 0xFFFFFFFFu, 0xFF800001u, 0x7F80FFFFu, 0x7FFF8000u}) {
      auto const value = std::bit_cast<float>(bits);
      CHECK(std::isnan(kv::from_f16(kv::to_f16(value))));
      CHECK(std::isnan(kv::from_bf16(kv::to_bf16(value))));
      CHECK(std::isnan(kv::from_e4m3(kv::to_e4m3(value))));
      CHECK(std::isnan(kv::from_e5m2(kv::to_e5m2(value))));
    }
  }

  TEST_CASE("an element is loaded from any address") {
    std::array<std::byte, 8> memory{};
    float const value = -1.5f;
    std::memcpy(memory.data() + 1, &value, sizeof value);
    CHECK(kv::load(kv::codec::f32, memory.data() + 1) == -1.5f);
    std::uint16_t const half = kv::to_f16(value);
    std::memcpy(memory.data() + 3, &half, sizeof half);
    CHECK(kv::load(kv::codec::f16, memory.data() + 3) == -1.5f);
    std::uint16_t const brain = kv::to_bf16(value);
    std::memcpy(memory.data() + 5, &brain, sizeof brain);
    CHECK(kv::load(kv::codec::bf16, memory.data() + 5) == -1.5f);
    CHECK(kv::bytes_of(kv::codec::f32) == 4);
    CHECK(kv::bytes_of(kv::codec::f16) == 2);
    CHECK(kv::bytes_of(kv::codec::bf16) == 2);
  }

  TEST_CASE("a float rounded to an element type is what a store and a load make of it") {
    CHECK(kv::rounded_to(kv::codec::f32, 0.1f) == 0.1f);
    CHECK(kv::rounded_to(kv::codec::f16, 0.1f) == 0.0999755859375f);
    CHECK(kv::rounded_to(kv::codec::bf16, 0.1f) == 0.10009765625f);
    for (kv::codec const element :
         {kv::codec::f32, kv::codec::f16, kv::codec::bf16, kv::codec::e4m3, kv::codec::e5m2}) {
      for (float const value : {0.0f, -0.3f, 0.7f, 1.0f, 1e-30f, 70000.0f}) {
        std::array<std::byte, 4> memory{};
        kv::store(element, value, memory.data());
        CHECK(kv::rounded_to(element, value) == kv::load(element, memory.data()));
      }
    }
  }
}
