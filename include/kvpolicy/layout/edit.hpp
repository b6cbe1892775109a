// What every applier checks and does besides its own work.
#pragma once

#include <kvpolicy/core/check.hpp>
#include <kvpolicy/core/check_counts.hpp>
#include <kvpolicy/core/check_pointers.hpp>
#include <kvpolicy/core/plan.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <kvpolicy/ops/gather_rows.hpp>
#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// A table shared by lanes that decide apart would be edited twice, differently.
template <class T>
void refuse_shared(char const* name, by_lane<T> const& table, keep_set const& keep, shape const& model) {
  bool const whole = keep.who.layers() == model.layers;
  bool const all_layers = whole && (keep.decides == granularity::token || model.layers == 1);
  bool const all_heads = keep.decides != granularity::lane || keep.who.heads == 1;
  expects(table.layer != 0 || all_layers, "apply", name, "shared by layers",
          "these layers decide apart: reduce_lanes makes them decide together");
  expects(table.head != 0 || all_heads, "apply", name, "shared by heads",
          "these heads decide apart: reduce_lanes makes them decide together");
  expects(table.sequence != 0 || keep.who.sequences == 1, "apply", name, "shared by sequences",
          "sequences hold different entries");
}

/// The part of a cache that a plan decided about; refused if plan, cache and state do not belong together.
template <executor Executor>
cache decided_part(Executor& exec, plan<Executor> const& decided, cache const& in, state<Executor> const& held,
                   side lists = side::kept) {
  keep_set const& keep = decided.keep();
  expects(keep.ordinal != nullptr, "apply", "plan", "empty", "decide comes before apply");
  expects(keep.lists == lists && keep.of == unit::token, "apply", "plan.keep", "dropped entries or pages",
          "appliers take the tokens that are kept");
  check_cache("apply", in);
  check_same_lanes("apply", "plan.who", keep.who, in.who);
  check_same_lanes("apply", "cache.who", in.who, held.who());
  refuse_shared("who.count", in.who.count, keep, in.shape);
  refuse_shared("who.position", in.who.position, keep, in.shape);
  cache part = in;
  part.who = in.who.layers_only(keep.who.layer_begin, keep.who.layer_end);
  check_decided_about("apply", "cache.who", part.who, keep);
  refuse_counts<typename Executor::backend>("apply", part.who);
  ops::refuse_stale(exec, part.who, keep);
  return part;
}

/// A table that an applier may write is the one that the cache's locator reads, and lanes that decide apart have rows
/// of their own.
inline void check_table(char const* name, by_lane<int> const& table, cache const& in, keep_set const& keep) {
  by_lane<int const> const& read = in.where.table;
  bool const same = table.data == read.data && table.sequence == read.sequence && table.layer == read.layer &&
                    table.head == read.head;
  expects(same, "apply", name, "another table", "it is the table that the cache's locator reads, to be written");
  refuse_shared(name, rows_of(in.where, table), keep, in.shape);
}

/// A list of slots: a table whose units hold one token.
inline void check_slots(char const* name, by_lane<int> const& table, cache const& in, keep_set const& keep) {
  bool const slots =
      in.where.kind == locating::slot_map ||
      ((in.where.kind == locating::csr_pages || in.where.kind == locating::block_table) && in.where.unit_tokens == 1);
  expects(slots, "apply", "where", "no list of slots", "this applier edits a list with one token a unit");
  check_table(name, table, in, keep);
}

/// What is kept, free and attended, for whom it matters. A backend without these verbs tells nothing.
template <executor Executor>
void tell_nothing(Executor& exec, tally* told) {
  if constexpr (implementation<ops::clear_tally_t, typename Executor::backend>::provided) {
    if (told != nullptr) ops::clear_tally(exec, told);
  }
}
template <executor Executor>
void tell_tails(Executor& exec, keep_set const& keep, cache const& part, tally* told) {
  if (told == nullptr) return;
  tell_nothing(exec, told);
  if constexpr (implementation<ops::free_tails_t, typename Executor::backend>::provided) {
    ops::free_tails(exec, keep, part, &told->physical_freed);
  }
}
template <executor Executor>
void tell_kept(Executor& exec, keep_set const& keep, lanes const& who, bool masked, tally* told) {
  if constexpr (implementation<ops::tell_t, typename Executor::backend>::provided) {
    if (told != nullptr) ops::tell(exec, keep, who, masked, told);
  }
}

template <executor Executor>
void check_list_scratch(Executor const& exec, cache const& in) {
  expects(exec.reserved() >= list_scratch<typename Executor::backend>(in), "apply", "exec",
          "an executor without scratch for this cache", "plan and state are made on the executor that runs them");
}

/// What list_rewrite, dead_slot and mask have in common. `before` runs when nothing can be refused any more.
template <executor Executor, class Shared, class Before>
void apply_list(Executor& exec, list_edit<Shared> const& edit, plan<Executor> const& decided, cache const& in,
                state<Executor>& held, tally* told, bool masked, Before const& before) {
  keep_set const& keep = decided.keep();
  cache const part = decided_part(exec, decided, in, held);
  check_slots("list", edit.list, in, keep);
  if (edit.map.data != nullptr) refuse_shared("map", rows_begun(edit.map, edit.map_begin), keep, in.shape);
  for (unit_list const* to : {&edit.freed, &edit.released}) {
    expects((to->unit.data == nullptr) == (to->count.data == nullptr), "apply", "freed", "half of a list",
            "a list of units has memory for the units and for their number");
    if (to->unit.data != nullptr) refuse_shared("freed", to->unit, keep, in.shape);
    if (to->unit.data != nullptr) refuse_shared("freed", to->count, keep, in.shape);
  }
  check_list_scratch(exec, in);
  ops::check_list(exec, keep, part, edit);
  tell_nothing(exec, told);
  before(part);
  ops::rewrite_list(exec, keep, part, edit, told != nullptr && !masked ? &told->physical_freed : nullptr);
  ops::carry_entries(exec, keep, part, std::span<held_column const>(held.columns()));
  ops::set_counts(exec, part.who, keep);
  tell_kept(exec, keep, part.who, masked, told);
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
