// SPDX-License-Identifier: Apache-2.0
// The entries that each query row is about, and the keys of the rows themselves.
#pragma once

#include <kvpolicy/core/query_view.hpp>

namespace KVPOLICY_NAMESPACE {

/// The span of entries that each of some query rows is about, and the keys of the tokens that the rows belong to. Rows
/// with equal spans that stand together are one *chunk*: the rows of a text that repeats these entries, for example.
struct row_spans {
  by_lane<int const> begin{};  ///< for each stored row the ordinal of the first entry that it is about
  by_lane<int const> end{};    ///< and the one behind the last; both null: every row is about all entries
  query_view keys{};  ///< [sequence, layer, KV head, row, channel]: the key of each row's own token, after RoPE, stored
                      ///< as the rows are; no rows: they have none

  /// The entries that a stored row is about, of those that a lane has.
  [[nodiscard]] KVPOLICY_HD ordinal_range of(lane this_lane, int stored_row, int entries) const {
    if (begin.data == nullptr) return {0, entries};
    int const first = begin.row(this_lane)[stored_row];
    int const last = end.row(this_lane)[stored_row];
    return {first > 0 ? first : 0, last < entries ? last : entries};
  }

  /// True if two stored rows are about the same entries.
  [[nodiscard]] KVPOLICY_HD bool alike(lane this_lane, int one, int other) const {
    if (begin.data == nullptr) return true;
    int const* const first = begin.row(this_lane);
    int const* const last = end.row(this_lane);
    return first[one] == first[other] && last[one] == last[other];
  }

  /// Refuses spans without an end, and keys that do not fit the rows. `call` and `name` are said in errors.
  void check(char const* call, char const* name, query_view const& rows, int kv_heads) const {
    auto const member = [name](char const* which) { return [=] { return std::string(name) + which; }; };
    expects((begin.data == nullptr) == (end.data == nullptr), call, member(begin.data == nullptr ? ".begin" : ".end"),
            "null", "a span has a begin and an end");
    if (keys.rows == 0) return;
    expects(keys.base != nullptr, call, member(".keys"), "null", "a signal is the engine's memory");
    detail::check_readable(call, "keys of rows", keys.element);
    detail::check_not_fp8(call, "keys of rows", keys.element);
    expects(keys.rows == rows.rows, call, member(".keys.rows"), keys.rows,
            [&] { return "each of " + std::to_string(rows.rows) + " rows has a key"; });
    expects(keys.heads == kv_heads, call, member(".keys.heads"), keys.heads,
            [&] { return "there are " + std::to_string(kv_heads) + " KV heads"; });
    expects(keys.dims == rows.dims, call, member(".keys.dims"), keys.dims,
            [&] { return "rows have " + std::to_string(rows.dims) + " channels"; });
  }
  void check_strides(char const* call, char const* name, lanes const& batch) const {
    if (keys.rows == 0) return;
    auto const one = [&](char const* member, std::int64_t stride, char const* axis, int elements) {
      detail::check_stride(call, [&] { return std::string(name) + member; }, stride, axis, elements);
    };
    one(".keys.sequence", keys.sequence, "sequences", batch.sequences);
    one(".keys.layer", keys.layer, "layers", batch.layers());
    one(".keys.head", keys.head, "KV heads", keys.heads);
    one(".keys.row", keys.row, "rows", keys.rows);
  }
  /// Refuses a span that ends before it begins, or after the last entry. It reads the spans and the counts.
  void check_rows(char const* call, char const* name, query_view const& rows, lanes const& batch) const {
    if (begin.data == nullptr) return;
    detail::for_each_lane(batch, [&](int, lane one) {
      int const entries = batch.committed(one);
      for (int r = 0; r < rows.valid(one); ++r) {
        int const stored = rows.stored(one, r);
        int const first = begin.row(one)[stored], last = end.row(one)[stored];
        expects(
            first >= 0 && first <= last && last <= entries, call, [&] { return std::string(name) + ".end"; },
            [&] { return std::to_string(last) + " of row " + std::to_string(r); },
            [&] {
              return "its span begins at " + std::to_string(first) + ", and there are " + std::to_string(entries) +
                     " entries";
            });
      }
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
