// Applier: nothing moves and nothing is freed; a mask tells attention what not to read.
#pragma once

#include <kvpolicy/layout/edit.hpp>
#include <kvpolicy/ops/mask_rows.hpp>

namespace KVPOLICY_NAMESPACE {

/// For engines whose kernel reads a mask over all rows (llama.cpp's kq mask, custom masks): the units of dropped
/// entries may not be read any more. The lane's list forgets them, so that no later decision sees them.
///
/// Attention is *masked*: memory and time stay what they were. A unit that the engine writes again (after a roll-back)
/// must be shown again: `show`.
struct mask {
  by_lane<int> list{};  ///< the table of the cache's locator, to be written: the lane's live units
  mask_rows rows{};     ///< the mask, to be written

  static constexpr auto name = "mask";
};

namespace detail {

inline void check_mask(char const* call, mask const& how, cache const& in) {
  expects(how.rows.rows.data != nullptr, call, "mask.rows", "null", "the mask is the engine's memory");
  expects(how.rows.units >= in.where.units, call, "mask.units", how.rows.units,
          [&] { return "the pool has " + std::to_string(in.where.units) + " units"; });
}

}  // namespace detail

/// Carries a keep set out by masking what is dropped. Only the elements of dropped entries are written.
///
/// - throws: `invalid_argument` as apply of list_rewrite, if two entries have one unit, and if the mask is smaller than
///   the pool or shared by lanes that decide apart. Then nothing was changed.
template <executor Executor>
void apply(Executor& exec, mask const& how, plan<Executor> const& decided, cache& in, state<Executor>& held,
           tally* told = nullptr) {
  decided.expects_decision("apply");
  detail::check_mask("apply", how, in);
  detail::refuse_shared("mask.rows", how.rows.rows, decided.keep(), in.shape);
  detail::apply_list(exec, list_edit<>{.list = how.list, .distinct = true}, decided, in, held, told, true,
                     [&](cache const& part) { ops::hide_dropped(exec, decided.keep(), part, how.rows); });
}

/// Makes the mask say exactly what the lists say: every unit of a live entry may be read, and no other.
/// - throws: `invalid_argument` if the mask is smaller than the pool, or shared by lanes with lists of their own.
template <executor Executor>
void show(Executor& exec, mask const& how, cache const& in) {
  detail::check_cache("show", in);
  detail::check_mask("show", how, in);
  by_lane<int> const lists = detail::rows_of(in.where, how.list);
  bool const layers = how.rows.rows.layer == 0 && lists.layer != 0 && in.who.layers() > 1;
  bool const heads = how.rows.rows.head == 0 && lists.head != 0 && in.who.heads > 1;
  bool const sequences = how.rows.rows.sequence == 0 && in.who.sequences > 1;
  expects(!layers && !heads && !sequences, "show", "mask.rows", "shared by lanes",
          "these lanes have lists of their own");
  ops::show_entries(exec, in, how.rows);
}

}  // namespace KVPOLICY_NAMESPACE
