// SPDX-License-Identifier: Apache-2.0
// Applier: masks the dropped entries. No row moves, and no memory is freed.
#pragma once

#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/ops/mask_rows.hpp>

namespace KVPOLICY_NAMESPACE {

/// For engines whose attention kernel reads a mask over all rows (llama.cpp's kq mask, custom masks). The mask hides
/// the units of dropped entries, and they are removed from the lane's list, so that no later decision sees them.
///
/// Attention is *masked*: it takes as much memory and time as before. If the engine writes a hidden unit again (after a
/// roll-back), call `show` to make it visible.
///
/// - only the mask elements of dropped entries are written.
/// - refuses everything that `list_rewrite` refuses, two entries with one unit, and a mask that is smaller than the
///   pool or shared by lanes that decide for themselves.
struct mask {
  by_lane<int> list{};  ///< the lane's live units: the table that the cache's locator reads, as writable memory
  mask_rows rows{};     ///< the mask, as writable memory

  static constexpr auto name = "mask";
  static constexpr applier_effects effects{.masks = true};
  using verbs = kvpolicy::verbs<ops::check_list_t, ops::rewrite_list_t, ops::hide_dropped_t>;

  /// Refuses a mask that does not cover the pool.
  void check(char const* call, cache const& in) const {
    expects(rows.rows.data != nullptr, call, "mask.rows", "null", "the mask is the engine's memory");
    expects(rows.units >= in.where.units, call, "mask.units", rows.units,
            [&] { return "the pool has " + std::to_string(in.where.units) + " units"; });
  }

  template <executor Executor>
  void refuse(Executor& exec, keep_set const& keep, cache const& in) const {
    check("apply", in);
    detail::refuse_shared("mask.rows", rows.rows, keep, in.shape);
    detail::refuse_list(exec, edited(), keep, in);
  }

  template <executor Executor>
  void edit(Executor& exec, keep_set const& keep, cache const& part, state<Executor>& state, apply_stats* stats) const {
    ops::hide_dropped(exec, keep, part, rows);
    detail::edit_list(exec, edited(), keep, part, state, true, stats);
  }

 private:
  [[nodiscard]] constexpr list_edit<> edited() const { return {.list = list, .distinct = true}; }
};

/// Writes the whole mask so that exactly the units of the lanes' live entries are visible.
/// - throws: `invalid_argument` if the mask is smaller than the pool, or shared by lanes with lists of their own.
template <executor Executor>
void show(Executor& exec, mask const& how, cache const& in) {
  detail::check_cache("show", in);
  how.check("show", in);
  by_lane<int> const lists = detail::rows_of(in.where, how.list);
  bool const layers = how.rows.rows.layer == 0 && lists.layer != 0 && in.lanes.layers() > 1;
  bool const heads = how.rows.rows.head == 0 && lists.head != 0 && in.lanes.heads > 1;
  bool const sequences = how.rows.rows.sequence == 0 && in.lanes.sequences > 1;
  expects(!layers && !heads && !sequences, "show", "mask.rows", "shared by lanes",
          "these lanes have lists of their own");
  ops::show_entries(exec, in, how.rows);
}

}  // namespace KVPOLICY_NAMESPACE
