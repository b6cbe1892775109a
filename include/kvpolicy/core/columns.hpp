// SPDX-License-Identifier: Apache-2.0
// Columns: the memory in which recorders keep signals, and the rule by which it follows its entries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/lanes.hpp>
#include <span>
#include <string_view>

namespace KVPOLICY_NAMESPACE {

/// The objects that a column has elements for: every entry of a lane, every page of a lane, every row of a query
/// window, every lane, or, for data that outlives a request (see `save_session`), every session.
enum class column_extent { lane_entry, lane_page, window_row, lane, session };

/// The rule for a column when entries move: `permute` it with the entries, `recompute` it, or let it `stay` as it is.
///
/// A column of `column_extent::lane` with the rule `recompute` is one int: the number of entries, from the lane's first
/// one on, for which the other columns of its recorder are up to date. Every call that moves or removes entries lowers
/// it to the first ordinal that changed (`lower_known`); a roll-back does so through the recorder's `forget`. The next
/// `observe` continues from there.
enum class on_move { permute, recompute, stay };

/// The description of a column. Each lane has `units` elements of `bytes` bytes; `units` = 0 means one for every entry.
struct column {
  char const* name = "";
  column_extent extent = column_extent::lane_entry;
  on_move rule = on_move::permute;
  int bytes = 4;
  int units = 0;
  int page = 0;  ///< of `column_extent::lane_page`: entries of a page, so that a saved slot has the pages that it
                 ///< fills; 0: all

  friend bool operator==(column const& a, column const& b) {
    return std::string_view(a.name) == b.name && a.extent == b.extent && a.rule == b.rule && a.bytes == b.bytes &&
           a.units == b.units && a.page == b.page;
  }
};

/// A column and its memory: one row of bytes for every lane.
struct recorded_column {
  column about{};
  by_lane<std::byte> rows{};
};

/// The columns of one recorder inside a state, for the sequences of one batch.
struct recorded_columns {
  shape model{};
  recorded_column const* first = nullptr;
  int const* slots = nullptr;  ///< the slot of each sequence of the batch; null: sequence s has slot s

  /// The i-th column, with a row for each lane of the batch.
  [[nodiscard]] recorded_column operator[](int i) const {
    recorded_column one = first[i];
    one.rows.slots = slots;
    return one;
  }

  /// The i-th column as a table of T.
  template <class T>
  [[nodiscard]] by_lane<T> table(int i) const {
    by_lane<std::byte> const& rows = first[i].rows;
    auto const size = static_cast<std::int64_t>(sizeof(T));
    return {reinterpret_cast<T*>(rows.data), rows.sequence / size, rows.layer / size, rows.head / size, slots};
  }
};

namespace detail {

/// Notes that the entries of a lane have changed from ordinal `first` on: see `on_move`.
inline void lower_known(std::span<recorded_column const> columns, lane this_lane, int first) {
  for (recorded_column const& one : columns) {
    if (one.about.extent != column_extent::lane || one.about.rule != on_move::recompute) continue;
    int& known = *reinterpret_cast<int*>(one.rows.row(this_lane));
    known = std::min(known, first);
  }
}

}  // namespace detail

}  // namespace KVPOLICY_NAMESPACE
