// SPDX-License-Identifier: Apache-2.0
// Checks of a locator: whether it has a place for each entry of some lanes, as far as that can be told.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/check_lanes.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/slots.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// True if all entries of a sequence are in one unit, which no table of the entries says.
[[nodiscard]] constexpr bool finds_by_sequence(locator const& where) {
  return where.kind == locating::identity || where.kind == locating::ring;
}

#if defined(KVPOLICY_COMPILED)  // the library kvpolicy::compiled holds them
void check_places(char const* call, char const* of, locator const& where, lanes const& batch);
void check_held(char const* call, char const* of, locator const& where, lanes const& batch);
#else
/// Refuses a locator without a place for each sequence of the lanes. It reads no table. `of` is the signal that it is
/// of, or empty.
inline void check_places(char const* call, char const* of, locator const& where, lanes const& batch) {
  auto const member = [of](char const* which) {
    return [=] { return std::string(of) + (*of != '\0' ? "." : "") + which; };
  };
  expects(where.units > 0, call, member("where.units"), where.units, "a pool has at least one unit");
  expects(where.unit_tokens > 0, call, member("where.unit_tokens"), where.unit_tokens,
          "a unit holds at least one token");
  expects(where.kind != locating::csr_pages || where.begin.data != nullptr, call, member("where.begin"), "null",
          "a list of a whole batch says where each lane begins");
  bool const direct = finds_by_sequence(where);
  expects(!direct || where.units >= batch.slot_total(), call, member("where.units"), where.units,
          "every sequence has a row of its own");
  expects(!direct || where.slots == batch.slots, call, member("where.slots"),
          where.slots == nullptr ? "null" : "another list",
          "the rows of these sequences are by slot: make the cache with kvpolicy::only");
  expects(where.kind == locating::identity || where.table.data != nullptr, call, member("where.table"), "null",
          "this locator reads a table");
  bool const batch_list = where.kind == locating::csr_pages;
  expects(where.kind == locating::identity || batch_list || where.table.sequence != 0 || batch.sequences == 1, call,
          member("where.table.sequence"), 0,
          [&] { return "there are " + std::to_string(batch.sequences) + " sequences, and each has a row of its own"; });
  expects(!batch_list || where.begin.sequence != 0 || batch.sequences == 1, call, member("where.begin.sequence"), 0,
          [&] { return "the pages of " + std::to_string(batch.sequences) + " sequences begin at different places"; });
}

/// Refuses a locator with fewer rows than a lane has entries. It reads counts only if there are fewer than the bound.
inline void check_held(char const* call, char const* of, locator const& where, lanes const& batch) {
  if (!finds_by_sequence(where) || where.unit_tokens >= batch.capacity) return;
  refuse_slots(call, batch, true);
  for_each_lane(batch, [&](int, lane one) {
    int const count = *batch.count.row(one);
    expects(
        count <= where.unit_tokens, call, [&] { return std::string(of) + ".where.unit_tokens"; }, where.unit_tokens,
        [&] { return "a lane holds " + std::to_string(count) + " entries: these rows are of a smaller cache"; });
  });
}
#endif

}  // namespace KVPOLICY_NAMESPACE::detail
