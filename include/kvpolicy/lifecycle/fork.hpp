// `fork` and `move` copy and move a request from one slot to another.
#pragma once

#include <kvpolicy/lifecycle/reset.hpp>
#include <kvpolicy/lifecycle/slot.hpp>
#include <kvpolicy/ops/copy_rows.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// Copies the recorded columns of a slot of one state to a slot of another one of the same policy. Columns with an
/// element for each entry or page may have room for more of them in `to`.
template <executor Executor>
void copy_columns(Executor& exec, state<Executor> const& from, int source, state<Executor>& to, int target) {
  for (std::size_t i = 0; i < from.columns().size(); ++i) {
    recorded_column const& read = from.columns()[i];
    recorded_column const& written = to.columns()[i];
    lane const first{source, from.lanes().layer_begin, 0};
    lane const there{target, from.lanes().layer_begin, 0};
    if (read.rows.head == written.rows.head && from.slack() == 0 && to.slack() == 0) {
      exec.copy(written.rows.row(there), read.rows.row(first), static_cast<std::size_t>(read.rows.sequence));
      continue;
    }
    auto const row = [](recorded_column const& of, int slack) {  // its bytes without those that a slide needs
      return of.rows.head - (of.about.one == per::lane_entry ? std::int64_t{slack} * of.about.bytes : 0);
    };
    auto const bytes = static_cast<std::size_t>(std::min(row(read, from.slack()), row(written, to.slack())));
    for_each_own_row(read.rows, from.lanes(), source, [&](lane one) {
      exec.copy(written.rows.row(lane{target, one.layer, one.head}), read.rows.row(one), bytes);
    });
  }
}

/// Copies the counts, the positions and the drafts of a slot.
template <executor Executor>
void copy_lanes(Executor& exec, lanes const& all, int source, int target) {
  auto const copy = [&](int* to, int const* from, int count) {
    exec.copy(reinterpret_cast<std::byte*>(to), reinterpret_cast<std::byte const*>(from),
              static_cast<std::size_t>(count) * sizeof(int));
  };
  for_each_own_row(all.count, all, source,
                   [&](lane one) { copy(all.count.row(lane{target, one.layer, one.head}), all.count.row(one), 1); });
  for_each_own_row(all.position, all, source, [&](lane one) {
    copy(all.position.row(lane{target, one.layer, one.head}), all.position.row(one), all.bound);
  });
  if (all.order.data != nullptr) {
    for_each_own_row(all.order, all, source, [&](lane one) {
      exec.copy(reinterpret_cast<std::byte*>(all.order.row(lane{target, one.layer, one.head})),
                reinterpret_cast<std::byte const*>(all.order.row(one)), sizeof(lane_order));
    });
  }
  if (all.in_flight != nullptr) copy(all.in_flight + target, all.in_flight + source, 1);
}

template <executor Executor>
void check_two_slots(char const* call, cache const& all, state<Executor> const& state, int from, int to, rows what) {
  check_slots_of(call, all, state);
  check_copied(call, all, what);
  check_slot(call, "from", all, from);
  check_slot(call, "to", all, to);
  expects(from != to, call, "to", to, "it is the slot that is copied");
  check_free(call, "to", state, to);
}

template <executor Executor>
void copy_slot(Executor& exec, cache const& all, state<Executor>& state, int from, int to, rows what) {
  if (what == rows::copy) {
    one_slot<Executor> const source(exec, all, from);
    one_slot<Executor> const target(exec, all, to);
    ops::copy_rows(exec, source.view(), target.view());
  }
  copy_lanes(exec, all.lanes, from, to);
  copy_columns(exec, state, from, state, to);
  state.history().copy(state.history(), from, to);
}

}  // namespace detail

/// Makes slot `to` a copy of slot `from`, for beams or several samples of one prompt: counts, positions, drafts and
/// recorded columns, the memory of the session included.
///
/// - in: `all` is the cache of all slots. With `rows::copy` the rows of K and V are copied to the places that the
///   locator has for slot `to`: an engine with a block table fills in the table's row before. With `rows::leave` the
///   engine shares or copies memory itself. It then gives a slot memory of its own before `append` or `apply` writes
///   there (copy on write): see `copy_on_write`.
/// - cost: reads and writes each row and each recorded number once.
/// - throws: `invalid_argument` if a slot is out of range, if they are the same, or if `to` is used by a request and
/// was
///   not reset. Then nothing was changed.
template <executor Executor>
void fork(Executor& exec, cache& all, state<Executor>& state, int from, int to, rows what = rows::copy) {
  detail::check_two_slots("fork", all, state, from, to, what);
  detail::copy_slot(exec, all, state, from, to, what);
}

/// Moves a request from slot `from` to slot `to`, and resets `from`. Parameters, cost and errors are as for `fork`. A
/// request's slot need not change when requests before it end; engines that keep their tables dense move it.
template <executor Executor>
void move(Executor& exec, cache& all, state<Executor>& state, int from, int to, rows what = rows::copy) {
  detail::check_two_slots("move", all, state, from, to, what);
  detail::copy_slot(exec, all, state, from, to, what);
  reset(exec, all, state, from);
}

}  // namespace KVPOLICY_NAMESPACE
