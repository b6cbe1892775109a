// SPDX-License-Identifier: Apache-2.0
// An example of a stage of your own, which goes around any scorer.
#pragma once

#include <kvpolicy/kvpolicy.hpp>

// example-begin
/// The scores of another scorer, squared.
template <kvpolicy::scorer Score>
struct squared {
  Score score_of{};
  using wraps = Score;
  using needs = typename Score::needs;
  static constexpr auto name = "squared";
  static constexpr auto fields() { return kvpolicy::make_fields(); }
  static constexpr auto decides = kvpolicy::decides_inside<Score>;

  struct square {
    KVPOLICY_HD float operator()(float score, kvpolicy::entry) const { return score * score; }
  };
  template <kvpolicy::scorer Other>
  [[nodiscard]] constexpr squared<Other> around(Other const& other) const {
    return {other};
  }
  void score(auto& exec, auto const& in, kvpolicy::score_view const& out) const {
    score_of.score(exec, in, out);
    kvpolicy::ops::map(exec, out, square{});
  }
  friend bool operator==(squared const&, squared const&) = default;
};
// example-end
