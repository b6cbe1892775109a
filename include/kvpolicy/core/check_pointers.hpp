// A check that reads tables of pointers to rows. It runs for executors whose memory the host can read.
#pragma once

#include <array>
#include <cstdint>
#include <kvpolicy/core/check.hpp>
#include <kvpolicy/core/check_counts.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The axes of a plane inside one layer and head, and with `of_unit` inside one unit.
inline std::array<axis, 6> axes_of_lane(plane const& rows, locator const& where, bool of_unit) {
  std::int64_t const tokens = where.kind == locating::slot_map ? 1 : where.unit_tokens;
  return {axis{of_unit ? 1 : where.units, rows.unit}, axis{tokens, rows.token}, axis{rows.dims, rows.dim}};
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

/// Refuses rows that are both keys and values (MLA's latent rows, found through tables of pointers). An applier that
/// moves the rows of keys and of values would move them twice. Each lane is compared with itself only.
///
/// Cost: a few comparisons for each lane, or for each unit of each lane if there is a pointer for each unit.
template <class Backend>
void refuse_rows_of_both(char const* call, cache const& in) {
  if constexpr (reads_on_host<Backend>) {
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

}  // namespace KVPOLICY_NAMESPACE::detail
