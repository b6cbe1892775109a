// SPDX-License-Identifier: Apache-2.0
// Verb: weights the attention of a row, keeps its sum, and adds it to what entries have.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// What is known of a lane after one pass: the sum of what the row gives, and of that times the weights.
struct shared_sums {
  double given = 0, weighted = 0;
  KVPOLICY_HD void add(float mass, float weight) {
    given += static_cast<double>(mass);
    weighted += static_cast<double>(mass) * static_cast<double>(weight);
  }
  /// The share of an entry. 0 / 0 is 0.
  [[nodiscard]] KVPOLICY_HD float share(float mass, float weight) const {
    double const drawn = static_cast<double>(mass) * static_cast<double>(weight);
    return weighted == 0 ? 0 : static_cast<float>(given * drawn / weighted);
  }
};

}  // namespace detail

namespace ops {

/// `add_shares(exec, mass, weights, to)`: adds to each entry its share of what a row gives to all entries of its lane:
///
///     to_j += (sum of m) m_j w_j / (sum of m w)
///
/// - in: `mass`, float32 [lanes, entries]; `weights`, a row of floats for each lane, of one sign. in, out: `to`,
///   likewise. 0 / 0 is 0.
/// - NaN: makes all shares of its lane NaN.
/// - cost: O(entries) a lane in two passes, with sums in double precision; no scratch.
/// - throws: `invalid_argument` if a segment of `mass` is not one lane, or if a table is null.
struct add_shares_t : verb<add_shares_t> {
  static constexpr auto name = "add_shares";
  static void check(score_view const& mass, by_lane<float const> const& weights, by_lane<float> const& to) {
    expects(mass.decides == granularity::lane, name, "mass.decides", static_cast<int>(mass.decides),
            "a row is shared out inside a lane");
    expects(weights.data != nullptr, name, "weights", "null", "every entry has one");
    expects(to.data != nullptr, name, "to", "null", "shares are added to it");
  }
};
inline constexpr add_shares_t add_shares{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
