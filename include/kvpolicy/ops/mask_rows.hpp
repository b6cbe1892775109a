// SPDX-License-Identifier: Apache-2.0
// Verbs: write the mask that an attention kernel reads.
#pragma once

#include <array>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// The format of a mask: an addend of the logits (0 or -inf), one byte per element, or one bit per element with the
/// lowest bit first. In bytes and bits, 1 means that attention may read the unit.
enum class mask_form { additive_f32, additive_f16, additive_bf16, boolean, bits };

[[nodiscard]] constexpr std::array<char const*, 5> names(mask_form) {
  return {"additive_f32", "additive_f16", "additive_bf16", "boolean", "bits"};
}

/// A mask over the units of a pool (slots, cells or rows). Every lane has a row; lanes share a row along axes of stride
/// 0. A device writes bits as 32-bit words, so there a row consists of whole words and begins at a multiple of 4 bytes.
struct mask_rows {
  by_lane<std::byte> rows{};  ///< strides in bytes
  mask_form form = mask_form::additive_f32;
  std::int64_t units = 0;  ///< number of elements of a row

  /// Sets whether attention may read a unit.
  KVPOLICY_HD void set(lane this_lane, std::int64_t unit, bool readable) const {
    std::byte* const row = rows.row(this_lane);
    if (form == mask_form::additive_f32) {
      store(codec::f32, detail::same_bits<float>(readable ? 0u : 0xFF800000u), row + 4 * unit);
    } else if (form == mask_form::boolean) {
      row[unit] = static_cast<std::byte>(readable ? 1 : 0);
    } else if (form == mask_form::bits) {  // device code has no operators of std::byte
      unsigned const bit = 1u << static_cast<int>(unit % 8);
      unsigned const old = static_cast<unsigned>(row[unit / 8]);
      row[unit / 8] = static_cast<std::byte>(readable ? old | bit : old & ~bit);
    } else {
      std::uint16_t const infinite = form == mask_form::additive_f16 ? 0xFC00 : 0xFF80;
      std::uint16_t const raw = readable ? std::uint16_t{0} : infinite;
      std::memcpy(row + 2 * unit, &raw, sizeof raw);
    }
  }
};

namespace ops {

/// `hide_dropped(exec, keep, cache, mask)`: masks the units of dropped entries. No other element is written.
///
/// - cost: one pass over the keep set and the dropped entries.
struct hide_dropped_t : verb<hide_dropped_t> {
  static constexpr auto name = "hide_dropped";
  static constexpr void check(keep_set const&, cache const&, mask_rows const&) {}
};
inline constexpr hide_dropped_t hide_dropped{};

/// `show_entries(exec, cache, mask)`: rewrites the mask, so that attention may read exactly the units of the lanes'
/// entries.
///
/// - cost: one write per unit and one per entry.
struct show_entries_t : verb<show_entries_t> {
  static constexpr auto name = "show_entries";
  static constexpr void check(cache const&, mask_rows const&) {}
};
inline constexpr show_entries_t show_entries{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
