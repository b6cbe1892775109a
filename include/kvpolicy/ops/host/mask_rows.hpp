// SPDX-License-Identifier: Apache-2.0
// Host implementations of the verbs that write masks.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/listed_marks.hpp>
#include <kvpolicy/ops/host/split_list.hpp>
#include <kvpolicy/ops/mask_rows.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Writes elements of one form of mask, as `mask_rows::set` does. It asks for the form once, not for every element.
template <mask_form Form>
class mask_writer {
 public:
  explicit mask_writer(std::byte* row) : row_(row) {}

  void set(std::int64_t unit, bool readable) const {
    if constexpr (Form == mask_form::bits) {
      auto const bit = static_cast<std::byte>(1u << static_cast<int>(unit & 7));
      std::byte& at = row_[unit >> 3];
      at = readable ? at | bit : at & ~bit;
    } else {
      put(unit, value(readable));
    }
  }
  /// Prefetches an element. Smaller ones are so few bytes that they are in the first-level cache anyway.
  void fetch(std::int64_t unit) const {
    if constexpr (sizeof(element) > 1) {
      __builtin_prefetch(row_ + unit * static_cast<std::int64_t>(sizeof(element)), 1);
    } else {
      static_cast<void>(unit);
    }
  }
  /// Prefetches the elements of the first `units` units.
  void fetch_all(std::int64_t units) const {
    for (std::int64_t line = 0; line < lines(units); ++line) __builtin_prefetch(row_ + 64 * line, 1, 2);
  }
  /// The cache lines of the elements of so many units.
  static std::int64_t lines(std::int64_t units) {
    return units * (Form == mask_form::bits ? 1 : 8 * static_cast<std::int64_t>(sizeof(element))) / (64 * 8) + 1;
  }
  /// Hides the first `units` units.
  void hide_all(std::int64_t units) const {
    if constexpr (Form == mask_form::bits) {
      std::fill_n(row_, units / 8, std::byte{0});
      for (std::int64_t unit = units / 8 * 8; unit < units; ++unit) set(unit, false);
    } else {
      for (std::int64_t unit = 0; unit < units; ++unit) put(unit, value(false));
    }
  }

 private:
  static constexpr bool wide = Form == mask_form::additive_f32;
  using element = std::conditional_t<
      wide, std::uint32_t,
      std::conditional_t<Form == mask_form::boolean || Form == mask_form::bits, std::uint8_t, std::uint16_t>>;
  static constexpr element value(bool readable) {
    if constexpr (Form == mask_form::boolean) return readable ? 1 : 0;
    constexpr unsigned infinite = wide ? 0xFF800000u : Form == mask_form::additive_f16 ? 0xFC00u : 0xFF80u;
    return readable ? element{0} : static_cast<element>(infinite);
  }
  void put(std::int64_t unit, element to) const {
    std::memcpy(row_ + unit * static_cast<std::int64_t>(sizeof to), &to, sizeof to);
  }
  std::byte* row_;
};

/// Calls visit(writer) with the writer of a mask's form.
template <class Visit>
void with_mask_writer(mask_rows const& mask, lane this_lane, Visit const& visit) {
  std::byte* const row = mask.rows.row(this_lane);
  switch (mask.form) {
    case mask_form::additive_f32:
      return visit(mask_writer<mask_form::additive_f32>(row));
    case mask_form::additive_f16:
      return visit(mask_writer<mask_form::additive_f16>(row));
    case mask_form::additive_bf16:
      return visit(mask_writer<mask_form::additive_bf16>(row));
    case mask_form::boolean:
      return visit(mask_writer<mask_form::boolean>(row));
    case mask_form::bits:
      return visit(mask_writer<mask_form::bits>(row));
  }
}

/// Sets the units of `count` entries: of entry `entry(i)`, for each i.
template <class Writer, class Entry>
void set_units(Writer const& to, locator const& where, lane this_lane, int count, Entry const& entry, bool readable) {
  if (where.kind == locating::slot_map) {
    int const* const slot = where.table.row(this_lane);
    for (int i = 0; i < count; ++i) to.set(slot[entry(i)], readable);
  } else {
    for (int i = 0; i < count; ++i) to.set(where.at(this_lane, entry(i)).unit, readable);
  }
}

}  // namespace detail

template <>
struct implementation<ops::hide_dropped_t, host> {
  static std::size_t scratch(shape const&, int bound) {
    return detail::scratch_of<int>(static_cast<std::size_t>(bound) + 1);
  }

  static void run(host_executor& exec, keep_set const& keep, cache const& in, mask_rows const& mask) {
    exec.for_each(keep.lanes.size(), [&](int i, int worker) {
      lane const this_lane = keep.lanes.at(i);
      if (!detail::leads_row(mask.rows, keep.lanes, this_lane)) return;
      auto const kept = keep.listed(segment_of(keep.lanes, keep.decides, i));
      if (in.where.kind == locating::slot_map) return hide_listed(exec, kept, in, mask, this_lane);
      detail::scratch_arena arena(exec.scratch(worker));
      int* const dropped = arena.take<int>(static_cast<std::size_t>(in.lanes.capacity) + 1);
      int const gone = detail::list_dropped(exec, kept, in.lanes.committed(this_lane), dropped);
      detail::with_mask_writer(mask, this_lane, [&](auto const& to) {
        detail::set_units(to, in.where, this_lane, gone, [&](int d) { return dropped[d]; }, false);
      });
    });
  }

 private:
  /// Hides the units that a list names. No hardware can tell where the next ones are. If more units are hidden than the
  /// row has cache lines, the row is fetched as a whole before; otherwise elements are fetched a few units ahead.
  static void hide_listed(host_executor const& exec, std::span<int const> kept, cache const& in, mask_rows const& mask,
                          lane this_lane) {
    constexpr int ahead = 16;
    detail::slots_kernels const& passes = detail::slots_of_isa[exec.simd_level()];
    int const* const list = in.where.table.row(this_lane);
    int const committed = in.lanes.committed(this_lane);
    int const gone = committed - static_cast<int>(kept.size());
    detail::with_mask_writer(mask, this_lane, [&](auto const& to) {
      if (to.lines(mask.units) <= std::min(gone, most_lines)) {
        to.fetch_all(mask.units);
        return detail::for_each_dropped(passes, kept, committed, list, [&](int const* slot, int count) {
          for (int i = 0; i < count; ++i) to.set(slot[i], false);
        });
      }
      detail::for_each_dropped(passes, kept, committed, list, [&](int const* slot, int count) {
        for (int i = 0; i < count; ++i) {
          to.fetch(slot[std::min(i + ahead, count - 1)]);
          to.set(slot[i], false);
        }
      });
    });
  }
  static constexpr int most_lines = 4096;  ///< that the second-level cache holds
};

template <>
struct implementation<ops::show_entries_t, host> {
  static void run(host_executor& exec, cache const& in, mask_rows const& mask) {
    exec.for_each(in.lanes.size(), [&](int i, int) {
      lane const this_lane = in.lanes.at(i);
      if (!detail::leads_row(mask.rows, in.lanes, this_lane)) return;
      int const count = *in.lanes.count.row(this_lane);
      detail::with_mask_writer(mask, this_lane, [&](auto const& to) {
        to.hide_all(mask.units);
        detail::set_units(to, in.where, this_lane, count, [](int e) { return e; }, true);
      });
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
