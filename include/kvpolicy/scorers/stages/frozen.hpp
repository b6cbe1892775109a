// SPDX-License-Identifier: Apache-2.0
// Stage: an entry's score is the one that it had when the policy observed.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/recorders/freeze.hpp>
#include <kvpolicy/scorers/carried.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {
/// A scorer that can be frozen: it scores each lane alone, by signals that are given.
template <class Score>
concept freezable = reads_given_signals<Score> && !stage<Score> && !ranks_candidates<Score> &&
                    Score::decides == granularity::lane && !std::same_as<typename Score::needs, kvpolicy::needs<>>;
}  // namespace detail

/// A scorer that runs in `observe`, where its signals are, and not in a decision: see `freeze`. It is the first stage
/// around its scorer.
///
///     kv::eviction{.score = kv::frozen<kv::lookahead_kv>{{.recent = 8}, kv::freezing::highest}, ...}
template <scorer Score>
struct frozen {
  Score score_of{};
  freezing how = freezing::replace;

  using wraps = Score;
  using needs = kvpolicy::needs<frozen_score>;
  static constexpr auto name = "frozen";
  static constexpr auto fields() { return make_fields(field{"how", &frozen::how}); }
  static constexpr granularity decides = granularity::lane;
  static_assert(detail::freezable<Score>,
                "kvpolicy: a scorer that is frozen scores each lane alone, by signals that are given");

  [[nodiscard]] constexpr auto recorders() const { return std::tuple{freeze<Score>{score_of, how}}; }
  [[nodiscard]] detail::copy_birth_score entry_scores(auto const& in) const {
    return {in.template get<frozen_score>().score};
  }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(frozen const&, frozen const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
