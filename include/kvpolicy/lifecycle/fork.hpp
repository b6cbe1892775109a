// SPDX-License-Identifier: Apache-2.0
// `fork` and `move` copy and move a request from one slot to another.
#pragma once

#include <kvpolicy/lifecycle/reset.hpp>
#include <kvpolicy/lifecycle/slot.hpp>
#include <kvpolicy/ops/copy_rows.hpp>
#include <optional>
#include <span>
#include <string>

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
      return of.rows.head - (of.about.extent == column_extent::lane_entry ? std::int64_t{slack} * of.about.bytes : 0);
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
    copy(all.position.row(lane{target, one.layer, one.head}), all.position.row(one), all.capacity);
  });
  if (all.order.data != nullptr) {
    for_each_own_row(all.order, all, source, [&](lane one) {
      exec.copy(reinterpret_cast<std::byte*>(all.order.row(lane{target, one.layer, one.head})),
                reinterpret_cast<std::byte const*>(all.order.row(one)), sizeof(lane_order));
    });
  }
  if (all.in_flight != nullptr) copy(all.in_flight + target, all.in_flight + source, 1);
}

/// A `fork` that has checked and allocated everything: `run` cannot fail.
template <executor Executor>
class slot_copy {
 public:
  slot_copy(char const* call, Executor& exec, cache const& all, state<Executor>& of, int from, int to, rows what)
      : all_(all), state_(&of), from_(from), to_(to) {
    check_slots_of(call, all, of);
    check_copied(call, all, what);
    check_slot(call, "from", all, from);
    check_slot(call, "to", all, to);
    expects(from != to, call, "to", to, "it is the slot that is copied");
    check_free(call, "to", exec, all, of, to);
    for (int const count : counts_of(exec, all, from)) {
      expects(count >= 0 && count <= all.lanes.capacity, call, "lanes.count", count,
              [&] { return "a lane holds 0 to " + std::to_string(all.lanes.capacity) + " entries, its `capacity`"; });
    }
    if (what != rows::copy) return;
    source_.emplace(exec, all, from);
    target_.emplace(exec, all, to);
  }

  void run(Executor& exec) const {
    if (source_) ops::copy_rows(exec, source_->view(), target_->view());
    copy_lanes(exec, all_.lanes, from_, to_);
    copy_columns(exec, *state_, from_, *state_, to_);
    state_->history().copy(state_->history(), from_, to_);
    raise_epochs(exec, *state_, all_.lanes.sequences_only(to_, to_ + 1));
  }

 private:
  cache all_;
  state<Executor>* state_;
  int from_;
  int to_;
  std::optional<listed_slots<Executor>> source_{};
  std::optional<listed_slots<Executor>> target_{};
};

/// The same for a `move`.
template <executor Executor>
class slot_move {
 public:
  slot_move(Executor& exec, cache const& all, state<Executor>& of, int from, int to, rows what)
      : copy_("move", exec, all, of, from, to, what), reset_(exec, all, of, std::span<int const>(&from, 1)) {}

  void run(Executor& exec) const {
    copy_.run(exec);
    reset_.run(exec);
  }

 private:
  slot_copy<Executor> copy_;
  slot_reset<Executor> reset_;
};

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
///   was not reset; `bad_alloc`. Then nothing was changed.
template <executor Executor>
void fork(Executor& exec, cache& all, state<Executor>& state, int from, int to, rows what = rows::copy) {
  detail::sole_use const in_use("fork", exec);
  detail::slot_copy<Executor>("fork", exec, all, state, from, to, what).run(exec);
}

/// Moves a request from slot `from` to slot `to`, and resets `from`. Parameters, cost and errors are as for `fork`. A
/// request's slot need not change when requests before it end; engines that keep their tables dense move it.
template <executor Executor>
void move(Executor& exec, cache& all, state<Executor>& state, int from, int to, rows what = rows::copy) {
  detail::sole_use const in_use("move", exec);
  detail::slot_move<Executor>(exec, all, state, from, to, what).run(exec);
}

}  // namespace KVPOLICY_NAMESPACE
