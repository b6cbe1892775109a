// Host implementations of the verbs that write masks.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/mask_rows.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::hide_dropped_t, host> {
  static constexpr bool provided = true;

  static std::size_t scratch(shape const&, int bound) {
    return detail::scratch_of<int>(static_cast<std::size_t>(bound) + 1);
  }

  static void run(host_executor& exec, keep_set const& keep, cache const& in, mask_rows const& mask) {
    exec.for_each(keep.lanes.size(), [&](int i, int worker) {
      lane const this_lane = keep.lanes.at(i);
      if (!detail::owns_row(mask.rows, keep.lanes, this_lane)) return;
      auto const kept = keep.listed(segment_of(keep.lanes, keep.decides, i));
      detail::scratch_arena arena(exec.scratch(worker));
      int* const dropped = arena.take<int>(static_cast<std::size_t>(in.lanes.bound) + 1);
      int const gone = detail::list_dropped(kept, in.lanes.committed(this_lane), dropped);
      for (int d = 0; d < gone; ++d) mask.set(this_lane, in.where.at(this_lane, dropped[d]).unit, false);
    });
  }
};

template <>
struct implementation<ops::show_entries_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, cache const& in, mask_rows const& mask) {
    exec.for_each(in.lanes.size(), [&](int i, int) {
      lane const this_lane = in.lanes.at(i);
      if (!detail::owns_row(mask.rows, in.lanes, this_lane)) return;
      for (std::int64_t unit = 0; unit < mask.units; ++unit) mask.set(this_lane, unit, false);
      int const count = *in.lanes.count.row(this_lane);
      for (int e = 0; e < count; ++e) mask.set(this_lane, in.where.at(this_lane, e).unit, true);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
