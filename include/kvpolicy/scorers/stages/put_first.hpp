// SPDX-License-Identifier: Apache-2.0
// Stage: the best entries by one score get their places first, and the rest are ranked by another score.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/first_places.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/put_first_rest.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>

namespace KVPOLICY_NAMESPACE {

/// By what the entries are ranked that are not put first: the newest first, or at random.
enum class rest_order { recency, random };

[[nodiscard]] constexpr std::array<char const*, 2> names(rest_order) { return {"recency", "random"}; }

/// Puts the best entries by a scorer first. An entry that is put first has the score +inf; the others have that of
/// `then`. SirLLM keeps so the most surprising entries and then the newest (Yao et al. 2024, arXiv:2405.12528); NACL
/// the most attended and then random ones (Chen et al. 2024, arXiv:2408.03675). Pick `top` only.
template <scorer Score>
struct put_first {
  Score score_of{};
  int tokens = 0;
  double part = 0;
  rest_order then = rest_order::recency;
  std::uint64_t seed = 42;  ///< of `then = random`

  static constexpr auto name = "put_first";
  static constexpr auto fields() {
    return make_fields(field{"tokens", &put_first::tokens}, field{"part", &put_first::part},
                       field{"then", &put_first::then}, field{"seed", &put_first::seed});
  }
  using needs = typename Score::needs;
  using wraps = Score;
  static constexpr granularity decides = decides_inside<Score>;
  static constexpr bool rows_see_every_entry = detail::rows_see_every_entry<Score>;
  static_assert(!detail::ranks_candidates<Score>, "kvpolicy: put_first needs a scorer that scores every entry");

  /// The same stage around another scorer.
  template <scorer Other>
  [[nodiscard]] constexpr put_first<Other> around(Other const& other) const {
    return {other, tokens, part, then, seed};
  }
  void check(char const* call) const {
    expects(!detail::facts_of(score_of).ranks_candidates, call, "put_first.score_of", to_string(score_of),
            "it ranks the entries that compete, and put_first needs a score of every entry");
    detail::refuse_blocks(call, "put_first.score_of", score_of);
    detail::refuse_first(call, "put_first.score_of", score_of);
    expects(tokens >= 0, call, "put_first.tokens", tokens, "a count cannot be negative");
    expects(part >= 0 && part <= 1, call, "put_first.part", part, "a part of the free places, 0 to 1");
    expects(tokens == 0 || part == 0, call, "put_first.part", part, "it says how many once: tokens or part");
  }
  [[nodiscard]] constexpr first_places places() const { return {tokens, part}; }
  [[nodiscard]] put_first_rest rest_scores(auto const& in) const {
    return {then == rest_order::recency ? put_first_rest::kind::recency : put_first_rest::kind::random,
            {seed, in.lanes.request}};
  }
  void score(auto& exec, auto const& in, score_view const& out) const { score_of.score(exec, in, out); }

  friend bool operator==(put_first const&, put_first const&) = default;
};

/// "snapkv(...) | put_first(part=0.75, then=random)"
template <class Score>
[[nodiscard]] std::string print(put_first<Score> const& of) {
  std::string text = to_string(of.score_of) + " | put_first(";
  text += of.part > 0 ? "part=" + to_string(of.part) : "tokens=" + to_string(of.tokens);
  text += ", then=" + std::string(to_string(of.then));
  return text + (of.seed != 42 ? ", seed=" + to_string(of.seed) : "") + ")";
}

}  // namespace KVPOLICY_NAMESPACE
