// SPDX-License-Identifier: Apache-2.0
// Signal: the attention probabilities that the engine has computed in a forward.
#pragma once

#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/signal_rows.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: the attention probabilities of the current forward [sequence, layer, query head, row, entry], after the
/// softmax. A row is a new token, and an entry is an ordinal of the lane, in the order of its positions. An entry that
/// the row does not see has probability 0. `probabilities_of` describes the usual tensor.
///
/// An engine that computes these anyway gives them in place of keys and queries, so that they are not computed twice.
/// They are those of one forward. Do not add them up over forwards: the recorder does, and its sums move with the
/// entries when a policy drops some of them.
struct attention_probabilities {
  static constexpr auto name = "attention_probabilities";
  std::byte const* base = nullptr;
  codec element = codec::f32;
  std::int64_t sequence = 0;  ///< strides in bytes
  std::int64_t layer = 0;
  std::int64_t head = 0;  ///< between query heads
  std::int64_t row = 0;
  int heads = 0;                    ///< number of query heads
  int rows = 0;                     ///< maximum number of rows of a lane
  int entries = 0;                  ///< entries of a row, which are contiguous; at least the entries of every lane
  by_lane<int const> position{};    ///< for each lane the position of each row
  by_lane<int const> valid_rows{};  ///< the number of valid rows of each lane, if sequences bring different numbers of
                                    ///< rows; null: all `rows` rows are valid
  by_lane<int const> counted{};     ///< the indices of the `valid_rows` rows that count; null: all of them

  [[nodiscard]] KVPOLICY_HD int valid(lane this_lane) const {
    return valid_rows.data != nullptr ? *valid_rows.row(this_lane) : rows;
  }
  [[nodiscard]] KVPOLICY_HD int stored(lane this_lane, int r) const {
    return counted.data != nullptr ? counted.row(this_lane)[r] : r;
  }
  /// The number of rows of a lane up to the newest committed token. The rows after it are those of drafts.
  [[nodiscard]] KVPOLICY_HD int committed_rows(lanes const& batch, lane this_lane) const {
    int left = valid(this_lane);
    if (position.data == nullptr || batch.committed(this_lane) == 0) return left;
    int const newest = batch.newest(this_lane);
    while (left > 0 && position.row(this_lane)[stored(this_lane, left - 1)] > newest) --left;
    return left;
  }
  [[nodiscard]] KVPOLICY_HD std::byte const* at(lane this_lane, int query_head, int of_row) const {
    return base + this_lane.sequence * sequence + this_lane.layer * layer + query_head * head + of_row * row;
  }

  void check(char const* call, shape const& model) const { detail::check_rows_given(call, name, *this, model); }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_row_strides(call, name, *this, batch);
  }
  /// Refuses rows of an earlier forward, and rows that are too short for the entries of a lane.
  void check_rows(char const* call, lanes const& batch) const {
    detail::check_row_positions(call, name, *this, batch, true);
    detail::for_each_lane(batch, [&](int, lane one) {
      int const held = batch.committed(one);
      expects(rows == 0 || held <= entries, call, "attention_probabilities.entries", entries, [&] {
        return "a lane holds " + std::to_string(held) + " entries, and each row has one for each of them";
      });
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
