// SPDX-License-Identifier: Apache-2.0
// Verb: writes a constant key and a constant value to one place of a pool, in every layer and head.
#pragma once

#include <kvpolicy/core/contract/check.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `fill_row(exec, cache, at, key, value)`: sets all channels of the rows at the place `at` to `key` and `value`.
///
/// Rows of a latent cache are written once.
///
/// - throws: `invalid_argument` if the place is not in the pool, if a plane is opaque, if a number other than 0 would
/// be
///   written to fp8 elements, which their scale multiplies, or if key and value differ in a latent cache.
struct fill_row_t : verb<fill_row_t> {
  static void check(cache const& in, place at, float key, float value) {
    expects(at.unit >= 0 && at.unit < in.where.units, "fill_row", "slot", at.unit,
            [&] { return "the pool has " + std::to_string(in.where.units) + " slots"; });
    expects(in.k.element != codec::opaque && in.v.element != codec::opaque, "fill_row", "planes", "opaque rows",
            "only their engine can write them");
    auto const one = [](char const* name, codec element, float number) {
      expects(number == 0 || !is_fp8(element), "fill_row", name, number, [&] {
        return std::string("the scales of ") + name_of(element) + " rows are their engine's: only 0 needs none";
      });
    };
    one("key", in.k.element, key);
    one("value", value_plane(in).element, value);
    expects(key == value || !detail::is_latent(in), "fill_row", "key", key,
            [&] { return "values are in the keys' rows, and are set to " + detail::spell(value); });
  }
};
inline constexpr fill_row_t fill_row{};

}  // namespace KVPOLICY_NAMESPACE::ops
