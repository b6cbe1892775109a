// SPDX-License-Identifier: Apache-2.0
// Verb: copies the rows of all entries from one cache into another.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `copy_rows(exec, from, to)`: copies K, V and the further planes (of a latent cache, K
/// and the further planes) of every entry of each lane of `from` to the entry
/// of the same ordinal in `to`. Drafts are copied, too.
///
/// - in: `from` and `to` have equally many sequences, and the same layers and heads. Counts are those of `from`; those
///   of `to` are not read. Strides and locators may differ. An entry that has the same place in both is left as it is.
/// - cost: reads and writes each row once. Neighbouring rows that are contiguous in both caches are copied at once.
/// - throws: `invalid_argument` if rows have other types or sizes. Then nothing was changed. The caller ensures that
///   the locator of `to` has a place for each entry.
struct copy_rows_t : verb<copy_rows_t> {
  static void check(cache const& from, cache const& to) {
    auto const same = [](plane const& a, plane const& b) { return a.element == b.element && a.channels == b.channels; };
    bool const latent = detail::is_latent(from);
    expects(same(from.k, to.k) && latent == detail::is_latent(to) && (latent || same(from.v, to.v)), "copy_rows",
            "rows", "of another type or size", "rows are copied byte by byte");
    expects(from.more.size() == to.more.size(), "copy_rows", "more", from.more.size(),
            [&] { return "the other cache has " + std::to_string(to.more.size()) + " further planes"; });
    expects(from.lanes.size() == to.lanes.size(), "copy_rows", "lanes", from.lanes.size(),
            [&] { return "the other cache has " + std::to_string(to.lanes.size()); });
  }
};
inline constexpr copy_rows_t copy_rows{};

}  // namespace KVPOLICY_NAMESPACE::ops
