// Verb: writes a constant key and a constant value to one place of a pool, in every layer and head.
#pragma once

#include <kvpolicy/core/check.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `fill_row(exec, cache, at, key, value)`: sets all channels of the rows at the place `at` to `key` and `value`.
///
/// - throws: `invalid_argument` if the place is not in the pool, or a plane is opaque.
struct fill_row_t : verb<fill_row_t> {
  static void check(cache const& in, place at, float, float) {
    expects(at.unit >= 0 && at.unit < in.where.units, "fill_row", "slot", at.unit,
            [&] { return "the pool has " + std::to_string(in.where.units) + " slots"; });
    expects(in.k.element != codec::opaque && in.v.element != codec::opaque, "fill_row", "planes", "opaque rows",
            "only their engine can write them");
  }
};
inline constexpr fill_row_t fill_row{};

}  // namespace KVPOLICY_NAMESPACE::ops
