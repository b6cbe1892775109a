// Verb: kept rows move to the front, in place.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::ops {

/// `gather_rows(exec, keep, cache, columns)`: entry i of each lane becomes what its i-th kept entry was.
///
/// - in: `keep`, ascending. in, out: rows of `cache.k` and `cache.v` through the locator, `cache.lanes.position`,
///   and every column per lane entry whose rule is `permute`; bytewise, any element type.
///   Counts per lane whose rule is `recompute` fall to the first ordinal that moved.
/// - ascending moves never overtake their sources: no scratch, no second copy.
/// - a table shared by several lanes (stride 0) is moved once, with the keep set that those lanes share.
/// - cost: reads and writes the kept rows that change place once.
struct gather_rows_t : verb<gather_rows_t> {
  static constexpr auto name = "gather_rows";
  static constexpr void check(keep_set const&, cache const&, std::span<recorded_column const>) {}
};
inline constexpr gather_rows_t gather_rows{};

/// `permute_columns(exec, keep, cache, columns)`: positions and recorded columns of entry i become those of its i-th
/// kept entry. What gather_rows does besides moving rows.
struct permute_columns_t : verb<permute_columns_t> {
  static constexpr auto name = "permute_columns";
  static constexpr void check(keep_set const&, cache const&, std::span<recorded_column const>) {}
};
inline constexpr permute_columns_t permute_columns{};

}  // namespace KVPOLICY_NAMESPACE::ops
