// SPDX-License-Identifier: Apache-2.0
// A check that reads tables of pointers to rows. It runs for executors whose memory the host can read.
#pragma once

#include <array>
#include <cstdint>
#include <kvpolicy/core/contract/check.hpp>
#include <kvpolicy/core/contract/check_counts.hpp>

namespace KVPOLICY_NAMESPACE::detail {

#if defined(KVPOLICY_COMPILED)  // the library kvpolicy::compiled holds them
bool apart_in(cache const& in, lane this_lane, std::int64_t unit);
void refuse_scales_left_behind(char const* call, cache const& in);
#else
/// The axes of a plane inside one layer and head, and with `of_unit` inside one unit.
inline std::array<axis, 6> axes_of_lane(plane const& rows, locator const& where, bool of_unit) {
  std::int64_t const tokens = where.kind == locating::slot_map ? 1 : where.unit_tokens;
  return {axis{of_unit ? 1 : where.units, rows.unit_stride}, axis{tokens, rows.token_stride},
          axis{rows.channels, rows.channel_stride}};
}

/// True if a lane's keys and values do not overlap in `unit`, or, if `unit` is negative, in all units that one base
/// pointer reaches.
inline bool apart_in(cache const& in, lane this_lane, std::int64_t unit) {
  plane k = in.k;
  plane v = in.v;
  k.base = in.k.row(this_lane.layer, {unit < 0 ? 0 : unit, 0}, this_lane.head);
  v.base = in.v.row(this_lane.layer, {unit < 0 ? 0 : unit, 0}, this_lane.head);
  return apart(k, axes_of_lane(k, in.where, unit >= 0), v, axes_of_lane(v, in.where, unit >= 0));
}

#endif

/// True if scales differ between the entries of a lane, so that they have to move with the entries' rows.
[[nodiscard]] inline bool scales_move(element_scales const& scales, locator const& where) {
  bool const unit_is_sequence = where.kind == locating::identity || where.kind == locating::ring;
  return scales.data != nullptr && (scales.token != 0 || (scales.unit != 0 && !unit_is_sequence));
}

/// True if `rows`, a plane of `cache.more`, is the memory of the scales.
[[nodiscard]] inline bool holds_scales(plane const& rows, element_scales const& of) {
  constexpr auto width = static_cast<std::int64_t>(sizeof(float));
  bool const whole = rows.contiguous() && rows.channels * bytes_of(rows.element) >= width && rows.bases.data == nullptr;
  return whole && static_cast<void const*>(rows.base) == of.data && rows.layer_stride == of.layer * width &&
         rows.unit_stride == of.unit * width && rows.token_stride == of.token * width &&
         rows.head_stride == of.head * width;
}

#if !defined(KVPOLICY_COMPILED)
/// Refuses scales that differ between entries and stay behind when rows move.
inline void refuse_scales_left_behind(char const* call, cache const& in) {
  auto const check = [&](char const* name, plane const& rows) {
    auto const held = [&](plane const& each) { return holds_scales(each, rows.scales); };
    bool const moved = std::any_of(in.more.begin(), in.more.end(), held);
    expects(!scales_move(rows.scales, in.where) || moved, call, name, "a number for each token or page",
            "rows move, and no plane of cache.more moves these numbers with them");
  };
  check("k.scales", in.k);
  check("v.scales", in.v);
}

#endif

/// Refuses rows that are both keys and values, unless the cache is latent as a whole. An applier that moves the rows of
/// keys and of values would move them twice. Each lane is compared with itself only.
///
/// Cost: a few comparisons for each lane, or for each unit of each lane if there is a pointer for each unit.
template <class Backend>
void refuse_rows_of_both(char const* call, cache const& in) {
  if constexpr (reads_on_host<Backend>) {
    if (is_latent(in)) return;                                             // its rows are moved once
    if (in.k.bases.data == nullptr && in.v.bases.data == nullptr) return;  // check_overlap has checked this case
    bool const by_unit = in.k.bases.unit != 0 || in.v.bases.unit != 0;
    for (int i = 0; i < in.lanes.size(); ++i) {
      lane const this_lane = in.lanes.at(i);
      bool fits = by_unit || apart_in(in, this_lane, -1);
      int const step = in.where.kind == locating::slot_map ? 1 : in.where.unit_tokens;
      for (std::int64_t e = 0; by_unit && fits && e < *in.lanes.count.row(this_lane); e += step) {
        fits = apart_in(in, this_lane, in.where.at(this_lane, static_cast<int>(e)).unit);
      }
      expects(
          fits, call, "k and v", [&] { return "overlapping in " + spell_lane_of(in.lanes, this_lane); },
          "this applier moves rows of both: keys and values are different memory");
    }
  }
}

/// Refuses a cache whose rows cannot be moved by an applier that moves those of keys, values and `more`.
template <class Backend>
void refuse_unmovable_rows(char const* call, cache const& in) {
  refuse_scales_left_behind(call, in);
  refuse_rows_of_both<Backend>(call, in);
}

}  // namespace KVPOLICY_NAMESPACE::detail
