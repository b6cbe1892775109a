// SPDX-License-Identifier: Apache-2.0
// Results of kernels folded into a number, so that a kernel that is written anew gives what the one before it gave.
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

/// Folds results into 64 bits (FNV-1a). All that are NaN count as one.
class folded {
 public:
  template <class T>
  void add(T value) {
    if (value != value) value = std::numeric_limits<T>::quiet_NaN();
    unsigned char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    for (unsigned char const each : bytes) bits_ = (bits_ ^ each) * 0x100000001B3u;
  }
  template <class T>
  void add(std::span<T const> values) {
    for (T const each : values) add(each);
  }
  [[nodiscard]] std::uint64_t bits() const { return bits_; }

 private:
  std::uint64_t bits_ = 0xCBF29CE484222325u;
};

/// True where the recorded bits of sums of products were recorded: compilers for other processors, such as 64-bit ARM,
/// fuse a product and a sum of the portable kernels into one operation, and so round once.
#if defined(__x86_64__)
inline constexpr bool has_recorded_sums = true;
#else
inline constexpr bool has_recorded_sums = false;
#endif

/// Bytes of rows of any element: every exponent, denormal numbers, and rarely infinities and NaN. Finite ones are below
/// 2 and not near zero.
inline std::vector<std::byte> any_rows(dice& random, kvpolicy::codec element, std::size_t numbers, bool finite) {
  std::vector<std::byte> made(numbers * as_size(kvpolicy::bytes_of(element)));
  for (std::byte& each : made) each = static_cast<std::byte>(random.below(256));
  for (std::size_t i = 0; finite && i < numbers; ++i) {
    auto const width = as_size(kvpolicy::bytes_of(element));
    std::byte& top = made[i * width + width - 1];
    top &= std::byte{0xBF};
    if (element == kvpolicy::codec::f16) top |= std::byte{0x20};
    if (element != kvpolicy::codec::f16) top |= std::byte{0x3C};
  }
  return made;
}

/// Calls f(level) for every instruction set that the processor has.
template <class F>
void for_each_isa(F const& f) {
  using kvpolicy::isa;
  for (isa const level : {isa::portable, isa::avx2, isa::avx512, isa::avx512_bf16, isa::amx}) {
    if (level > kvpolicy::best_isa()) continue;
    CAPTURE(static_cast<int>(level));
    f(level);
  }
}

}  // namespace kvpolicy_test
