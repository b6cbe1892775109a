// Device implementations of the verbs that write masks.
#pragma once

#include <kvpolicy/core/error.hpp>
#include <kvpolicy/ops/cuda/lists_rows.hpp>
#include <kvpolicy/ops/mask_rows.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Bits share a word with those of other threads: they are set and cleared by words of 32, in little order.
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

/// A block a piece of the committed entries of the lane that owns a row: those that are not kept are hidden.
struct hide_kernel {
  keep_set keep;
  kvpolicy::lanes lanes;
  locator where;
  mask_rows mask;
  row_owners rows;
  int pieces;
  int entries;  ///< of a piece

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = rows.at(block.index() / pieces);
    int const begin = block.index() % pieces * entries;
    int const committed = lanes.committed(one);
    int const end = take_lower{}(committed, begin + entries);
    listed_row const kept = listed_for(keep, one);
    for (int e = begin + block.thread(); e < end; e += block.threads()) {
      if (!kept.has(e)) set_in_mask(block, mask, one, where.at(one, e).unit, false);
    }
  }
};

/// A thread an element of a row, or 32 of them: nothing may be read.
struct hide_all {
  mask_rows mask;
  row_owners rows;
  std::int64_t of_row;

  template <class Block>
  KVPOLICY_HD void operator()(Block&, std::int64_t i) const {
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

/// A block a piece of a lane's entries, drafts too.
struct show_kernel {
  kvpolicy::lanes lanes;
  locator where;
  mask_rows mask;
  row_owners rows;
  int pieces;
  int entries;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = rows.at(block.index() / pieces);
    int const begin = block.index() % pieces * entries;
    int const end = take_lower{}(*lanes.count.row(one), begin + entries);
    for (int e = begin + block.thread(); e < end; e += block.threads()) {
      set_in_mask(block, mask, one, where.at(one, e).unit, true);
    }
  }
};

/// A device writes bits by words of four bytes: rows begin at one, and have room for whole ones.
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
  static constexpr bool provided = true;

  /// Rows of bits are aligned to 4 bytes, with room for whole words; bits beyond the mask's units keep what they say.
  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, mask_rows const& mask) {
    detail::check_mask_words("apply", mask);
    detail::row_owners const rows = detail::owners_of(mask.rows, keep.lanes);
    int const pieces = detail::pieces_of(exec, in.lanes.bound);
    detail::launch_change(
        exec, launch_shape{rows.count() * pieces, exec.config().entry_threads, 0},
        detail::hide_kernel{keep, in.lanes, in.where, mask, rows, pieces, exec.config().entries_of_a_block});
  }
};

template <kernel_backend Backend>
struct implementation<ops::show_entries_t, Backend> {
  static constexpr bool provided = true;

  /// Rows of bits as for hide_dropped.
  template <class Executor>
  static void run(Executor& exec, cache const& in, mask_rows const& mask) {
    detail::check_mask_words("show", mask);
    detail::row_owners const rows = detail::owners_of(mask.rows, in.lanes);
    std::int64_t const of_row = mask.form == mask_form::bits ? (mask.units + 31) / 32 : mask.units;
    detail::launch_each_change(exec, rows.count() * of_row, detail::hide_all{mask, rows, of_row});
    int const pieces = detail::pieces_of(exec, in.lanes.bound);
    detail::launch_change(
        exec, launch_shape{rows.count() * pieces, exec.config().entry_threads, 0},
        detail::show_kernel{in.lanes, in.where, mask, rows, pieces, exec.config().entries_of_a_block});
  }
};

}  // namespace KVPOLICY_NAMESPACE
