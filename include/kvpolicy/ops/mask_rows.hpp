// Verb: dropped entries in the mask that an attention kernel reads.
#pragma once

#include <array>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// What an element of a mask is: an addend of the logits (0 or -inf), a byte, or a bit in little order; 1 may be read.
enum class mask_form { additive_f32, additive_f16, additive_bf16, boolean, bits };

[[nodiscard]] constexpr std::array<char const*, 5> names(mask_form) {
  return {"additive_f32", "additive_f16", "additive_bf16", "boolean", "bits"};
}

/// A mask over the units of a pool (slots, cells, rows): a row of bytes for every lane, shared along axes of stride 0.
/// A device writes bits by words: there rows are whole words of 4 bytes, and begin at multiples of 4.
struct mask_rows {
  by_lane<std::byte> rows{};  ///< strides in bytes
  mask_form form = mask_form::additive_f32;
  std::int64_t units = 0;  ///< elements of a row

  /// Says that a unit may be read, or may not.
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

/// `hide_dropped(exec, keep, cache, mask)`: units of dropped entries may not be read any more. Nothing else is written.
/// - cost: one pass over the keep sets and the dropped entries.
struct hide_dropped_t : verb<hide_dropped_t> {
  static constexpr auto name = "hide_dropped";
  static constexpr void check(keep_set const&, cache const&, mask_rows const&) {}
};
inline constexpr hide_dropped_t hide_dropped{};

/// `show_entries(exec, cache, mask)`: exactly the units of the lanes' entries may be read.
/// - cost: one write a unit and one an entry.
struct show_entries_t : verb<show_entries_t> {
  static constexpr auto name = "show_entries";
  static constexpr void check(cache const&, mask_rows const&) {}
};
inline constexpr show_entries_t show_entries{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
