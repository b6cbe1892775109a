// SPDX-License-Identifier: Apache-2.0
// Scores as unsigned integers in the same order, so that selections compare and bin integers on every backend.
#pragma once

#include <cstdint>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Reserved keys. `nan_key` is the key of every NaN; no score has any of the others. Keys ascend from NaN over -inf to
/// +inf.
inline constexpr std::uint32_t below_all_keys = 0;
inline constexpr std::uint32_t nan_key = 1;
inline constexpr std::uint32_t above_all_keys = 0xFFFFFFFEu;
inline constexpr std::uint32_t forced_key = 0xFFFFFFFFu;  ///< marks an entry that is kept without competing

/// The key of +inf.
inline constexpr std::uint32_t infinite_key = 0xFF800000u;

/// The key of a score. All NaNs have one key, and -0 has the key of +0. There is no branch, because the signs of
/// scores are unpredictable.
[[nodiscard]] KVPOLICY_HD inline std::uint32_t radix_key(float score) {
  auto const bits = same_bits<std::uint32_t>(score);
  std::uint32_t const negative = 0u - (bits >> 31);
  std::uint32_t key = bits ^ (negative | 0x80000000u);
  key += key == 0x7FFFFFFFu ? 1 : 0;                          // -0 is +0
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? nan_key : key;  // by its bits: true under -ffast-math too
}

}  // namespace KVPOLICY_NAMESPACE::detail
