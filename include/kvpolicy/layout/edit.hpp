// SPDX-License-Identifier: Apache-2.0
// Checks and edits that several appliers share.
#pragma once

#include <kvpolicy/core/contract/check.hpp>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/contract/check_pointers.hpp>
#include <kvpolicy/core/plan.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <kvpolicy/ops/gather_rows.hpp>
#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Refuses a table that is shared by lanes that decide for themselves: it would be edited twice, in different ways.
template <class T>
void check_apart(char const* call, char const* name, by_lane<T> const& table, lanes const& batch, granularity decides,
                 shape const& model) {
  bool const whole = batch.layers() == model.layers;
  bool const all_layers = whole && (decides == granularity::sequence || model.layers == 1);
  bool const all_heads = decides != granularity::lane || batch.heads == 1;
  expects(table.layer != 0 || all_layers, call, name, "shared by layers",
          "these layers decide apart: reduce_lanes makes them decide together");
  expects(table.head != 0 || all_heads, call, name, "shared by heads",
          "these heads decide apart: reduce_lanes makes them decide together");
  expects(table.sequence != 0 || batch.sequences == 1, call, name, "shared by sequences",
          "sequences hold different entries");
}
template <class T>
void refuse_shared(char const* name, by_lane<T> const& table, keep_set const& keep, shape const& model) {
  check_apart("apply", name, table, keep.lanes, keep.decides, model);
}

/// The cache, restricted to the layers and sequences that a keep set decides about.
[[nodiscard]] inline cache decided_part(cache const& in, keep_set const& keep) {
  cache part = in;
  part.lanes = in.lanes.layers_only(keep.lanes.layer_begin, keep.lanes.layer_end)
                   .sequences_only(keep.lanes.sequence_begin, keep.lanes.sequence_end());
  return part;
}

/// Refuses a plan, a cache and a state that do not belong together. `ops::refuse_stale` checks whether the plan is
/// stale.
template <executor Executor>
void check_decided(plan<Executor> const& decided, cache const& in, state<Executor> const& state, bool takes_dropped) {
  keep_set const& keep = decided.keep();
  decided.expects_decision("apply");
  expects(keep.items == item::token, "apply", "plan.keep", "pages", "appliers take tokens");
  expects(keep.lists == side::kept || takes_dropped, "apply", "plan.keep", "the entries that lowest_one drops",
          "this applier takes those that are kept: overwrite takes both");
  check_cache("apply", in);
  check_same_lanes("apply", "plan.lanes", keep.lanes, in.lanes);
  check_same_lanes("apply", "cache.lanes", in.lanes, state.lanes());
  refuse_shared("lanes.count", in.lanes.count, keep, in.shape);
  refuse_shared("lanes.position", in.lanes.position, keep, in.shape);
  lanes const decided_lanes = decided_part(in, keep).lanes;
  check_decided_about("apply", "cache.lanes", decided_lanes, keep);
  refuse_counts<typename Executor::backend>("apply", decided_lanes);
  if (keep.lists == side::kept) refuse_out_of_order<typename Executor::backend>("apply", decided_lanes, "this plan");
}

/// Refuses a table that an applier would write, unless it is the table that the cache's locator reads and lanes that
/// decide for themselves have rows of their own.
inline void check_table(char const* name, by_lane<int> const& table, cache const& in, keep_set const& keep) {
  check_same_table("apply", name, table, in.where.table);
  refuse_shared(name, rows_of(in.where, table), keep, in.shape);
}

/// Refuses a table that is not a list of slots: its units must hold one token.
inline void check_slots(char const* name, by_lane<int> const& table, cache const& in, keep_set const& keep) {
  bool const slots =
      in.where.kind == locating::slot_map ||
      ((in.where.kind == locating::csr_pages || in.where.kind == locating::block_table) && in.where.unit_tokens == 1);
  expects(slots, "apply", "where", "no list of slots", "this applier edits a list with one token a unit");
  check_table(name, table, in, keep);
}

/// Refuses lanes that share a row of a list but hold other tokens, because the row is edited by those of the first
/// lane. The host reads the positions that lanes do not share.
template <class Backend>
void refuse_other_sharers(char const* call, lanes const& batch, by_lane<int> const& rows) {
  if constexpr (reads_on_host<Backend>) {
    for_each_lane(batch, [&](int, lane one) {
      lane const first{one.sequence, rows.layer == 0 ? batch.layer_begin : one.layer, rows.head == 0 ? 0 : one.head};
      int const count = *batch.count.row(one), other = *batch.count.row(first);
      expects(
          count == other, call, "lanes.count",
          [&] { return std::to_string(count) + " in " + spell_lane_of(batch, one); },
          [&] { return "it shares a row of the list with a lane that holds " + std::to_string(other); });
      refuse_other_positions(call, batch, one, first, "lanes that share a row of the list hold the same tokens");
    });
  }
}

/// Refuses a list of freed units that has memory for the units only or for their number only, or that is shared by
/// lanes that decide for themselves.
inline void check_freed(unit_list const& to, keep_set const& keep, shape const& model) {
  expects((to.unit.data == nullptr) == (to.count.data == nullptr), "apply", "freed", "half of a list",
          "a list of units has memory for the units and for their number");
  if (to.unit.data == nullptr) return;
  refuse_shared("freed", to.unit, keep, model);
  refuse_shared("freed", to.count, keep, model);
}

/// Sets the stats to zero, unless they are null.
template <executor Executor>
void clear_stats(Executor& exec, apply_stats* stats) {
  if (stats != nullptr) ops::clear_stats(exec, stats);
}
/// Sets the stats to zero and counts the entries that are freed at the end of each lane, unless the stats are null.
template <executor Executor>
void count_freed_tails(Executor& exec, keep_set const& keep, cache const& part, apply_stats* stats) {
  if (stats == nullptr) return;
  ops::clear_stats(exec, stats);
  ops::free_tails(exec, keep, part, &stats->physical_freed);
}
/// Counts the kept and the attended entries, unless the stats are null.
template <executor Executor>
void count_what_stays(Executor& exec, keep_set const& keep, lanes const& batch, bool masked, apply_stats* stats) {
  if (stats != nullptr) ops::count_kept(exec, keep, batch, masked, stats);
}

/// The checks that list_rewrite, dead_slot, mask and overwrite share.
template <executor Executor, class Shared>
void refuse_list(Executor& exec, list_edit<Shared> const& edit, keep_set const& keep, cache const& in) {
  check_slots("list", edit.list, in, keep);
  if (edit.map.data != nullptr) refuse_shared("map", rows_begun(edit.map, edit.map_begin), keep, in.shape);
  for (unit_list const* to : {&edit.freed, &edit.released}) check_freed(*to, keep, in.shape);
  ops::check_list(exec, keep, decided_part(in, keep), edit);
}

/// Updates the list, positions, recorded columns and counts so that each lane holds exactly the kept entries.
template <executor Executor, class Shared>
void edit_list(Executor& exec, list_edit<Shared> const& edit, keep_set const& keep, cache const& part,
               state<Executor>& state, bool masked, apply_stats* stats) {
  clear_stats(exec, stats);
  ops::rewrite_list(exec, keep, part, edit, stats != nullptr && !masked ? &stats->physical_freed : nullptr);
  ops::permute_columns(exec, keep, part, state.columns(part.lanes));
  ops::set_counts(exec, part.lanes, keep);
  count_what_stays(exec, keep, part.lanes, masked, stats);
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
