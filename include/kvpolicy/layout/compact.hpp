// Applier: moves the kept rows to the front of their lane. Keys keep the rotation of their positions.
#pragma once

#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/ops/compact_rows.hpp>

namespace KVPOLICY_NAMESPACE {

/// Shortens a lane by moving its kept rows together, in place. Each entry keeps its logical position, so the next
/// token's position is still the length of the sequence, not the number of rows: the engine must compute RoPE from
/// positions. Rows that two entries or two sequences share must not be moved, so every entry of a lane needs a place of
/// its own.
///
/// - places: entry i of a lane is at the lane's i-th place afterwards. The engine may free the places from the new
///   count on.
/// - cost: reads and writes each kept row that changes its place once. No allocation.
/// - refuses rows that are both keys and values (latent attention), if they are in memory that the host can check.
struct compact {
  static constexpr auto name = "compact";
  static constexpr auto fields() { return make_fields(); }
  static constexpr applier_effects effects{.moves_rows = true, .leaves_gaps = true};
  using verbs = kvpolicy::verbs<ops::compact_rows_t>;

  template <executor Executor>
  void refuse(Executor&, keep_set const& keep, cache const& in) const {
    detail::refuse_unmovable_rows<typename Executor::backend>("apply", detail::decided_part(in, keep));
  }

  template <executor Executor>
  void edit(Executor& exec, keep_set const& keep, cache const& part, state<Executor>& state, apply_stats* stats) const {
    if (stats != nullptr) ops::refuse_stale(exec, part.lanes, keep);  // before anything is counted
    detail::count_tails(exec, keep, part, stats);
    ops::compact_rows(exec, keep, part, state.columns(part.lanes));
    detail::count_listed(exec, keep, part.lanes, false, stats);
  }

  friend bool operator==(compact const&, compact const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
