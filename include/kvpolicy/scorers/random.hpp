// SPDX-License-Identifier: Apache-2.0
// Random scores: the baseline that any method must beat.
#pragma once

#include <cstdint>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/seeded.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by a uniform number in [0, 1), which is a hash of (seed, request, layer, head, position).
/// `request` is the number that the request carries (`lanes::request`), 0 unless the engine gives one; it is not the
/// slot. The score is the same on every backend, for any number of threads, in every batch and at every decision.
struct random_scores {
  std::uint64_t seed = 42;

  static constexpr auto name = "random";
  static constexpr auto fields() { return make_fields(field{"seed", &random_scores::seed}); }
  using needs = kvpolicy::needs<>;
  static constexpr granularity decides = granularity::lane;

  /// The score of an entry: a number in [0, 1).
  struct uniform {
    std::uint64_t seed;
    by_lane<int const> request{};
    /// What the hash is made of.
    KVPOLICY_HD static std::uint64_t mix(std::uint64_t x) { return detail::mixed(x); }
    /// The same in one lane.
    struct of_lane {
      detail::seeded_lane numbers;
      KVPOLICY_HD float operator()(float, entry at) const {
        return numbers.at(static_cast<std::uint64_t>(at.position));
      }
    };
    [[nodiscard]] KVPOLICY_HD of_lane in_lane(lane_entries const& of) const {
      int const from = request.data != nullptr ? *request.row(of.lane) : 0;
      return {detail::seeded_lane::of(seed, static_cast<std::uint64_t>(from), of.lane)};
    }
    KVPOLICY_HD float operator()(float old, entry at) const { return in_lane({.lane = at.lane})(old, at); }
  };

  [[nodiscard]] uniform entry_scores(auto const& in) const { return {seed, in.lanes.request}; }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(random_scores const&, random_scores const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
