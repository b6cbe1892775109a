// SPDX-License-Identifier: Apache-2.0
// Device implementations of the verbs that write masks.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/cuda/lists/rows.hpp>
#include <kvpolicy/ops/mask_rows.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Sets one element of a mask. Bits share 32-bit words with bits of other threads, so they are changed by atomics; the
/// first bit is the lowest of the first byte.
template <class Block>
KVPOLICY_HD void set_in_mask(Block& block, mask_rows const& mask, lane this_lane, std::int64_t unit, bool readable) {
  if (mask.form != mask_form::bits) {
    mask.set(this_lane, unit, readable);
    return;
  }
  unsigned* const word = reinterpret_cast<unsigned*>(mask.rows.row(this_lane)) + unit / 32;
  unsigned const bit = 1u << static_cast<int>(unit % 32);
  if (readable) {
    block.atomic_or(word, bit);
  } else {
    block.atomic_and(word, ~bit);
  }
}

/// Shows the entries of a row's owner, drafts included, or hides its committed entries that are not kept.
struct show_or_hide {
  kvpolicy::lanes lanes;
  locator where;
  mask_rows mask;
  bool readable;    ///< shows them
  keep_set keep{};  ///< where entries are hidden

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, lane one, ordinal_range piece) const {
    int const end = min_op{}(readable ? *lanes.count.row(one) : lanes.committed(one), piece.end);
    listed_row const kept = readable ? listed_row{} : listed_for(keep, one);
    for (int e = piece.begin + block.thread(); e < end; e += block.threads()) {
      if (!kept.has(e)) set_in_mask(block, mask, one, where.at(one, e).unit, readable);
    }
  }
};

/// Hides everything, one thread for each element of a row or for 32 bits of it.
struct hide_all {
  mask_rows mask;
  row_owners rows;
  std::int64_t of_row;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one = rows.at(static_cast<int>(i / of_row));
    std::int64_t const at = i % of_row;
    if (mask.form != mask_form::bits) {
      mask.set(one, at, false);
      return;
    }
    unsigned* const word = reinterpret_cast<unsigned*>(mask.rows.row(one)) + at;
    std::int64_t const left = mask.units - 32 * at;
    *word = left >= 32 ? 0u : *word & ~((1u << static_cast<int>(left)) - 1);
  }
};

/// Throws unless the rows of a bit mask begin at multiples of 4 bytes, since a device writes their bits by 32-bit
/// words.
inline void check_mask_words(char const* call, mask_rows const& mask) {
  auto bits = reinterpret_cast<std::uintptr_t>(mask.rows.data);
  for (std::int64_t const stride : {mask.rows.sequence, mask.rows.layer, mask.rows.head}) {
    bits |= static_cast<std::uintptr_t>(stride);
  }
  expects(mask.form != mask_form::bits || bits % 4 == 0, call, "mask.rows", "misaligned rows",
          "a device writes bits by words of 4 bytes");
}

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::hide_dropped_t, Backend> {
  /// Rows of bits must be aligned to 4 bytes and have space for whole words. Bits behind the mask's units do not
  /// change.
  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, mask_rows const& mask) {
    detail::check_mask_words("apply", mask);
    detail::launch_row_pieces(exec, detail::owners_of(mask.rows, keep.lanes), in.lanes.capacity,
                              detail::show_or_hide{in.lanes, in.where, mask, false, keep});
  }
};

template <kernel_backend Backend>
struct implementation<ops::show_entries_t, Backend> {
  /// The same requirements apply to rows of bits as in hide_dropped.
  template <class Executor>
  static void run(Executor& exec, cache const& in, mask_rows const& mask) {
    detail::check_mask_words("show", mask);
    detail::row_owners const rows = detail::owners_of(mask.rows, in.lanes);
    std::int64_t const of_row = mask.form == mask_form::bits ? (mask.units + 31) / 32 : mask.units;
    detail::launch_each_unless_fault(exec, rows.count() * of_row, detail::hide_all{mask, rows, of_row});
    detail::launch_row_pieces(exec, rows, in.lanes.capacity, detail::show_or_hide{in.lanes, in.where, mask, true});
  }
};

}  // namespace KVPOLICY_NAMESPACE
