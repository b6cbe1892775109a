// SPDX-License-Identifier: Apache-2.0
// The addresses of the rows of a lane's entries.
#pragma once

#include <cstdint>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Computes the addresses of many rows of a lane. In a contiguous cache and in a slot map they are those of a pointer,
/// a stride and a number, which takes no look at the locator for each row.
class lane_rows {
 public:
  lane_rows() = default;
  /// `of` must live as long as this object.
  lane_rows(row_view const& of, lane this_lane) : of_(&of), lane_(this_lane) {
    plane const& rows = of.rows;
    if (rows.bases.data != nullptr) return;
    if (of.where.kind == locating::identity) {
      first_ = rows.row(lane_.layer, {of.where.unit_of(lane_.sequence), 0}, lane_.head);
      stride_ = rows.token_stride;
    } else if (of.where.kind == locating::slot_map) {
      first_ = rows.row(lane_.layer, {}, lane_.head);
      stride_ = rows.unit_stride;
      slots_ = of.where.table.row(lane_);
    }
  }

  /// Writes the addresses of entries [begin, end).
  template <class Address>
  KVPOLICY_OP void find(int begin, int end, Address* to) const {
    if (first_ == nullptr) {
      for (int e = begin; e < end; ++e) *to++ = of_->row(lane_, e);
    } else if (slots_ == nullptr) {
      for (int e = begin; e < end; ++e) *to++ = first_ + e * stride_;
    } else {
      for (int e = begin; e < end; ++e) *to++ = first_ + slots_[e] * stride_;
    }
  }

 private:
  row_view const* of_ = nullptr;
  lane lane_{};
  std::byte const* first_ = nullptr;  ///< the row of ordinal or slot 0, if the others are at multiples of a stride
  std::int64_t stride_ = 0;
  int const* slots_ = nullptr;
};

}  // namespace KVPOLICY_NAMESPACE::detail
