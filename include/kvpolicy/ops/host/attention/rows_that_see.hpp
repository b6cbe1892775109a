// SPDX-License-Identifier: Apache-2.0
// Which query rows of a lane take part in a softmax, and which entries each of them sees.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/visit_attention.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The rows of a lane that are used, and the entries that they see.
class rows_that_see {
 protected:
  rows_that_see(query_view const& rows, attention_mass_options const& how, lanes const& batch, lane this_lane)
      : rows_(rows), lane_(this_lane), position_(batch.position.row(this_lane)), entries_(batch.committed(this_lane)) {
    int const newest = batch.newest(this_lane);
    int end = rows_.valid(lane_);
    while (!sees_all() && end > 0 && position_of(end - 1) > newest) --end;
    int const used = how.used().of(entries_);
    begin_ = used > 0 ? std::max(0, end - used) : 0;
    domain_ = entries_;
    if (how.domain == key_domain::past && begin_ < end && !sees_all()) domain_ = entries_before(position_of(begin_));
    if (how.rows == reduction::last) begin_ = std::max(begin_, end - 1);
    count_ = std::max(0, end - begin_);
    seen_ = count_ > 0 ? visible(count_ - 1) : 0;
  }

  /// Row `row` of those that are used.
  [[nodiscard]] attention_row row_at(int row) const { return {begin_ + row, position_of(begin_ + row)}; }
  /// The number of entries that it sees.
  [[nodiscard]] int visible(int row) const {
    return sees_all() ? domain_ : std::min(domain_, entries_before(position_of(begin_ + row) + 1));
  }

  /// The number of entries that are older than the first row used.
  [[nodiscard]] int before_rows() const {
    return count_ == 0 || sees_all() ? entries_ : entries_before(position_of(begin_));
  }

  query_view const& rows_;
  lane lane_;
  int const* position_;
  int entries_;
  int begin_ = 0;   ///< the first row used
  int count_ = 0;   ///< rows of each head that are used
  int domain_ = 0;  ///< entries over which softmax runs
  int seen_ = 0;    ///< entries that any row sees

 private:
  [[nodiscard]] bool sees_all() const { return rows_.position.data == nullptr; }
  [[nodiscard]] int position_of(int row) const { return rows_.position.row(lane_)[rows_.stored(lane_, row)]; }

  /// The number of entries at positions below `limit`. Visible entries are a prefix: positions ascend, or
  /// (`lane_order`) a row sees all entries that are out of order, because it is newer.
  [[nodiscard]] int entries_before(int limit) const {
    return static_cast<int>(std::lower_bound(position_, position_ + entries_, limit) - position_);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
