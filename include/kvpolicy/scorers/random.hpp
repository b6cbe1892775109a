// SPDX-License-Identifier: Apache-2.0
// Random scores: the baseline that any method must beat.
#pragma once

#include <cstdint>
#include <kvpolicy/core/contract/fields.hpp>
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
    /// The finaliser of SplitMix64: flipping an input bit flips each output bit with a probability near one half.
    KVPOLICY_HD static std::uint64_t mix(std::uint64_t x) {
      x += 0x9E3779B97F4A7C15u;
      x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
      x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
      return x ^ (x >> 31);
    }
    /// The same in one lane.
    struct of_lane {
      std::uint64_t state;
      KVPOLICY_HD float operator()(float, entry at) const {
        std::uint64_t const x = mix(state ^ static_cast<std::uint64_t>(at.position));
        return static_cast<float>(x >> 40) * 5.9604644775390625e-8f;  // 24 bits, times 2^-24
      }
    };
    [[nodiscard]] KVPOLICY_HD of_lane in_lane(lane_entries const& of) const {
      std::uint64_t x = mix(seed);
      x = mix(x ^ static_cast<std::uint64_t>(request.data != nullptr ? *request.row(of.lane) : 0));
      x = mix(x ^ static_cast<std::uint64_t>(of.lane.layer));
      return {mix(x ^ static_cast<std::uint64_t>(of.lane.head))};
    }
    KVPOLICY_HD float operator()(float old, entry at) const { return in_lane({.lane = at.lane})(old, at); }
  };

  [[nodiscard]] uniform entry_scores(auto const& in) const { return {seed, in.lanes.request}; }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(random_scores const&, random_scores const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
