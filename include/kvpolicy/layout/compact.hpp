// SPDX-License-Identifier: Apache-2.0
// Applier: moves the kept rows to the front of their lane. Keys keep the rotation of their positions.
#pragma once

#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/ops/compact_rows.hpp>
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {

/// Shortens a lane by moving its kept rows together, in place. Each entry keeps its logical position, so the next
/// token's position is still the length of the sequence, not the number of rows: the engine must compute RoPE from
/// positions. A row to which another one moves must be nobody else's: an engine whose sequences share the blocks of a
/// prefix calls `copy_on_write` for the first entry that is dropped.
///
/// - places: entry i of a lane is at the lane's i-th place afterwards. The engine may free the places from the new
///   count on.
/// - cost: reads and writes each kept row that changes its place once. No allocation.
/// - refuses keys and values that overlap, unless the cache is latent (`shape.value_dim`). Refuses a unit outside of
/// the
///   pool. Refuses to move rows into a unit that the tables of the call name for another entry or sequence, too. Slots
///   that the call leaves out are not looked at. The last two need tables that the host can read.
struct compact {
  static constexpr auto name = "compact";
  static constexpr auto fields() { return make_fields(); }
  static constexpr applier_effects effects{.moves_rows = true, .leaves_gaps = true};
  using verbs = kvpolicy::verbs<ops::compact_rows_t, ops::check_units_t, ops::free_tails_t>;

  template <executor Executor>
  void refuse(Executor& exec, keep_set const& keep, cache const& in) const {
    cache const part = detail::decided_part(in, keep);
    detail::refuse_unmovable_rows<typename Executor::backend>("apply", part);
    constexpr bool rows_move = true;
    ops::check_units(exec, keep, part, rows_move);
  }

  template <executor Executor>
  void edit(Executor& exec, keep_set const& keep, cache const& part, state<Executor>& state, apply_stats* stats) const {
    if (stats != nullptr)
      ops::refuse_stale(exec, part.lanes, keep);  // before counting; on a device `apply` left this to `edit`
    detail::count_freed_tails(exec, keep, part, stats);
    ops::compact_rows(exec, keep, part, state.columns(part.lanes));
    detail::count_what_stays(exec, keep, part.lanes, false, stats);
  }

  friend bool operator==(compact const&, compact const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
