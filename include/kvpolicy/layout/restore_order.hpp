// SPDX-License-Identifier: Apache-2.0
// `restore_order` sorts the entries of lanes by position.
#pragma once

#include <kvpolicy/core/contract/check.hpp>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/contract/check_pointers.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/layout/edit.hpp>
#include <kvpolicy/ops/argmin.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Refuses lanes whose lists or rows cannot be sorted.
template <executor Executor>
void check_sorting(cache const& in, state<Executor> const& state, by_lane<int> const& list) {
  using backend = typename Executor::backend;
  check_cache("restore_order", in);
  check_same_lanes("restore_order", "cache.lanes", in.lanes, state.lanes());
  expects(in.lanes.order.data != nullptr, "restore_order", "lanes.order", "null", "then entries are in order");
  refuse_counts<backend>("restore_order", in.lanes);
  if (list.data != nullptr) {
    check_same_table("restore_order", "list", list, in.where.table);
    return refuse_other_sharers<backend>("restore_order", in.lanes, rows_of(in.where, list));
  }
  refuse_unmovable_rows<backend>("restore_order", in);
  if constexpr (reads_on_host<backend>) {  // a device exchanges entries, and needs no free place
    for (int i = 0; i < in.lanes.size(); ++i) {
      lane const one = in.lanes.at(i);
      int const count = *in.lanes.count.row(one);
      expects(in.lanes.order.row(one)->ascends() || count < in.lanes.capacity, "restore_order", "lanes.count", count,
              "rows are sorted by way of a free place behind the last entry: the lane is full");
    }
  }
}

}  // namespace detail

/// Sorts the entries of every lane by position, after `overwrite` with `lanes.order` has put new entries into the
/// places of old ones. Calls that read entries in the order of their positions need this: policies that pool scores or
/// read pages, appliers that keep the order, `save`.
///
/// - in: `list` is the table that the locator reads, if the cache has slots. Then only numbers move. Null: rows of K
/// and
///   V move, by way of the first place behind the lane's last entry, which must be free.
/// - out: lists or rows, positions, recorded columns; `lanes.order` says that they ascend. Lanes that ascend already
/// are
///   not touched.
/// - cost: O(entries log entries) for each lane that is out of order, and its numbers or rows once. Allocates a copy of
///   one lane's numbers. A device allocates nothing and needs no free place: one block of threads for each lane
///   exchanges entries, O(entries squared).
/// - throws: `invalid_argument` if `lanes.order` is null, the list is another one, a lane has no free place, or the
/// state
///   is of another cache; `bad_alloc`. Then nothing was changed.
template <executor Executor>
void restore_order(Executor& exec, cache& in, state<Executor>& state, by_lane<int> const& list = {}) {
  detail::check_sorting(in, state, list);
  ops::sort_entries(exec, in, list, state.columns(in.lanes));
  detail::raise_epochs(exec, state, in.lanes);
}

}  // namespace KVPOLICY_NAMESPACE
