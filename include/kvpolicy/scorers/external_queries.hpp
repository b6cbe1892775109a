// SPDX-License-Identifier: Apache-2.0
// Signal: query rows that belong to no token of the cache, such as those of lookahead tokens.
#pragma once

#include <kvpolicy/core/query_view.hpp>
#include <kvpolicy/core/row_spans.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: query rows after RoPE that do not belong to the tokens of the cache. The engine makes them of tokens that it
/// guesses, learns or repeats, and that it does not keep. Every row sees every entry, whatever its position, so
/// `position` may be null. If `lse` is given, it is over all keys that a row attended to, also those of rows like it.
/// `spans` says which entries each row is about, for scorers that ask, and has the keys of the rows' own tokens.
struct external_queries : query_view {
  row_spans spans{};
  by_lane<float const> hidden_norm{};  ///< for each stored row the norm of its token's hidden state; null: not known

  static constexpr auto name = "external_queries";
  static constexpr auto tensor = "query_rows";
  /// True if there is any row: each sees every entry.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const&, lane this_lane) const { return valid(this_lane) > 0; }
  void check(char const* call, shape const& model) const {
    static constexpr int anywhere = 0;
    query_view placed = *this;
    if (placed.position.data == nullptr) placed.position = {&anywhere};
    detail::check_rows_given(call, name, placed, model);
    expects(dims == model.head_dim, call, "external_queries.dims", dims,
            [&] { return "the shape says " + std::to_string(model.head_dim) + " channels"; });
    spans.check(call, "external_queries.spans", *this, model.kv_heads);
  }
  void check_strides(char const* call, lanes const& batch) const {
    if (rows == 0) return;
    detail::check_stride(call, "external_queries.sequence", sequence, "sequences", batch.sequences);
    detail::check_stride(call, "external_queries.layer", layer, "layers", batch.layers());
    detail::check_layers_apart(call, "external_queries.layer", layer, sequence, batch);
    detail::check_stride(call, "external_queries.head", head, "query heads", heads);
    detail::check_stride(call, "external_queries.row", row, "rows", rows);
    if (hidden_norm.data != nullptr) {
      detail::check_stride(call, "external_queries.hidden_norm.layer", hidden_norm.layer, "layers", batch.layers());
      detail::check_stride(call, "external_queries.hidden_norm.sequence", hidden_norm.sequence, "sequences",
                           batch.sequences);
    }
    spans.check_strides(call, "external_queries.spans", batch);
  }
  /// Refuses numbers of valid rows that are out of range, and spans of entries that are not there, if the host can read
  /// them.
  void check_rows(char const* call, lanes const& batch) const {
    for (int i = 0; valid_rows.data != nullptr && i < batch.size(); ++i) {
      int const count = valid(batch.at(i));
      expects(count >= 0 && count <= rows, call, "external_queries.valid_rows", count,
              [&] { return "a lane has 0 to " + std::to_string(rows) + " rows"; });
    }
    if (rows > 0) spans.check_rows(call, "external_queries.spans", *this, batch);
  }
};

}  // namespace KVPOLICY_NAMESPACE
