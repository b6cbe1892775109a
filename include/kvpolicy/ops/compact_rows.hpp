// Verb: shorten lanes to their kept entries, in place.
#pragma once

#include <kvpolicy/ops/entries.hpp>
#include <kvpolicy/ops/gather_rows.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `compact_rows(exec, keep, cache, columns)`: shortens each lane to its kept entries: does what `refuse_stale`,
/// `gather_rows` and `set_counts` do, in this order.
///
/// - An applier that lists it in its `verbs` calls it before anything else that writes, because `apply` then leaves the
///   refusal of a stale plan to it.
/// - throws: as `refuse_stale`. Then nothing was changed.
struct compact_rows_t : verb<compact_rows_t> {
  static constexpr auto name = "compact_rows";
  static constexpr bool refuses_stale = true;
  static constexpr void check(keep_set const&, cache const&, std::span<recorded_column const>) {}
};
inline constexpr compact_rows_t compact_rows{};

}  // namespace KVPOLICY_NAMESPACE::ops
