// SPDX-License-Identifier: Apache-2.0
// Verb: computes how much each entry's key is like the other keys that compete, where the similarity counts.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `similarity(exec, keys, out)`: out[e] = the mean cosine of entry e with the entries that compete, of which those do
/// not count that are below the average of their row:
///
///     c_ij   = cos(k_i, k_j), 0 for i = j                      i, j: entries that compete
///     a_i     = 1 / n  sum over j of c_ij                       n: how many compete
///     out_j  = 1 / n  sum over i of (c_ij if c_ij >= a_i, else 0)
///
/// - in: `keys` of `out.lanes`; out, float32 [lanes, entries], in which -inf marks an entry that does not compete.
/// - out: those marks stay; the other numbers are overwritten.
/// - NaN: a NaN in a key makes all numbers of its lane NaN.
/// - range: the sum of unit rows and the sums over i are in double precision. A norm below 1e-37 counts as 0.
/// - cost: O(n^2 * D) per lane. Scratch per worker: an int, two floats and a double for each entry, 226 rows of D
/// floats,
///   where D is rounded up to a multiple of 32, D doubles, and 8 KiB. On a device, two floats for each entry and D
///   floats for each lane; it multiplies one pair after another, which is meant for prompts of some thousand entries.
/// - throws: `invalid_argument` if a segment of `out` is not one lane.
/// - source: the diversity of OpenVINO GenAI's adaptive eviction.
struct similarity_t : verb<similarity_t> {
  static constexpr auto name = "similarity";
  static void check(keys const& from, score_view const& out) {
    detail::check_readable(name, "keys", from.rows.element);
    detail::check_scales(name, "keys", from.rows);
    expects(out.decides == granularity::lane, name, "out.decides", static_cast<int>(out.decides),
            "keys belong to lanes");
  }
};
inline constexpr similarity_t similarity{};

}  // namespace KVPOLICY_NAMESPACE::ops
