// SPDX-License-Identifier: Apache-2.0
// Verb: computes the mean of each lane's keys or values, as they are or each divided by its norm.
#pragma once

#include <cstdint>
#include <kvpolicy/core/columns.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// What a mean of rows is taken of, and what becomes of it. A row or a mean of zeros has no direction, and stays zero.
struct mean_row_options {
  bool unit = false;               ///< true: the mean is of rows divided by their norms
  bool unit_mean = false;          ///< true: the mean is divided by its own norm
  by_lane<float> inverse_norms{};  ///< receives 1 / norm of each entry's row, 0 for a row of zeros; null: not wanted
};

namespace detail {

/// Stretches of entries whose sums are computed apart, so that a sum of many rows loses little. Their number depends on
/// the bound alone, so the bits do not depend on workers or launches.
struct row_stretches {
  static constexpr int least = 256;  ///< entries of a stretch
  static constexpr int most = 64;    ///< stretches of a lane
  int entries = least;
  int count = 1;

  KVPOLICY_HD constexpr explicit row_stretches(int bound)
      : entries(bound > least * most ? (bound + most - 1) / most : least), count((bound + entries - 1) / entries) {}
};

/// What a row of this norm is multiplied by to have the norm 1. No norm is so small that its inverse overflows.
[[nodiscard]] KVPOLICY_HD constexpr float inverse_norm(float norm) {
  return norm > 1e-37f || norm != norm ? 1 / norm : 0;
}

}  // namespace detail

namespace ops {

/// `mean_row(exec, lanes, rows, options, out)`: out[d] = the mean over the lane's committed entries of channel d of
/// their rows.
///
/// - in: `rows`, keys or values of `lanes`, of any element type.
/// - out: float32, `rows.channels` numbers for each lane, zeros for one without entries; and `inverse_norms`.
/// - range: sums are in single precision, in stretches of 256 to 2,048 entries, which the host adds in double and a
///   device in single precision. A norm below 1e-37 counts as 0.
/// - cost: reads every row once; norms read it a second time while it is in the cache. Scratch per worker: D doubles,
///   D floats, and a float for each entry. Scratch on a device: D floats for each of up to 64 stretches of a lane.
/// - source: KeyDiff, whose anchor is the mean of unit keys.
struct mean_row_t : verb<mean_row_t> {
  static constexpr auto name = "mean_row";
  template <executor Executor>
  void operator()(Executor& exec, lanes const& batch, row_view const& from, mean_row_options const& how,
                  by_lane<float> const& out) const {
    // Parameters have types here, so that callers may write options in braces.
    verb<mean_row_t>::operator()(exec, batch, from, how, out);
  }
  static void check(lanes const&, row_view const& from, mean_row_options const&, by_lane<float> const& out) {
    detail::check_readable("mean_row", "rows", from.rows.element);
    detail::check_scales("mean_row", "rows", from.rows);
    expects(out.data != nullptr, "mean_row", "out", "null",
            "each lane's mean is written there: a scorer asks its plan for memory by `spare_rows`");
  }
};
inline constexpr mean_row_t mean_row{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
