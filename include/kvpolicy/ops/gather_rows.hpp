// SPDX-License-Identifier: Apache-2.0
// Verbs: move kept rows, or only their columns, to the front, in place.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::ops {

/// `gather_rows(exec, keep, cache, columns)`: moves the i-th kept entry of each lane to ordinal i.
///
/// - in: `keep`, ascending. in, out: rows of `cache.k`, `cache.v` and `cache.more` through the locator,
///   `cache.lanes.position`, and every column per lane entry whose rule is `permute`. Bytes are copied, so any element
///   type works. Columns per lane whose rule is `recompute` are lowered to the first ordinal that moved.
/// - Rows move in ascending order, so no source is overwritten before it is read. This needs no scratch and no second
///   copy.
/// - A table that several lanes share (stride 0) is moved once, with the keep set that those lanes share.
/// - cost: reads and writes each kept row that changes its place once.
struct gather_rows_t : verb<gather_rows_t> {
  static constexpr auto name = "gather_rows";
  static constexpr void check(keep_set const&, cache const&, std::span<recorded_column const>) {}
};
inline constexpr gather_rows_t gather_rows{};

/// `permute_columns(exec, keep, cache, columns)`: moves positions and recorded columns of the i-th kept entry to
/// ordinal i. It does what `gather_rows` does, but for rows.
struct permute_columns_t : verb<permute_columns_t> {
  static constexpr auto name = "permute_columns";
  static constexpr void check(keep_set const&, cache const&, std::span<recorded_column const>) {}
};
inline constexpr permute_columns_t permute_columns{};

}  // namespace KVPOLICY_NAMESPACE::ops
