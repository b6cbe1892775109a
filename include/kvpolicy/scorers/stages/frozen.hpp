// SPDX-License-Identifier: Apache-2.0
// Stage: an entry's score is the one that it had when the policy observed.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/scorers/carried.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/freeze.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {
/// True for a scorer that reads what the engine gives, or that is for the end of a prompt.
template <class Score>
inline constexpr bool scores_once = [] {
  if constexpr (requires { Score::when; }) return Score::when == phase::prefill;
  return !requires(Score const& score) { score.recorders(); } &&
         !requires(Score const& score, lanes const& batch, shape const& of) { score.spare_rows(batch, of); };
}();

/// A scorer that can be frozen: it scores each lane alone, once for a prompt or by signals that are given.
template <class Score>
concept freezable = scores_once<Score> && !stage<Score> && !ranks_candidates<Score> && !puts_first<Score> &&
                    !requires(Score const& score) { score.reads_budget(); } && Score::decides == granularity::lane &&
                    !std::same_as<typename Score::needs, kvpolicy::needs<>>;
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
  static_assert(
      detail::freezable<Score>,
      "kvpolicy: a scorer that is frozen scores each lane alone, once for a prompt or by signals that are given");
  static constexpr int lane_numbers = freeze<Score>::lane_numbers;

  /// Memory for the numbers of lanes, and for how many entries each had.
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch, shape const&) {
    return lane_numbers > 0 ? rows_of_scores(batch, std::int64_t{lane_numbers + 1} * batch.size()) : 0;
  }
  void refuse(auto&, auto const& in) const {
    expects(lane_numbers == 0 || in.template get<frozen_score>().numbers.data != nullptr, "decide",
            "frozen_score.numbers", "null", "its scorer leaves numbers of lanes for an allotter");
  }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{freeze<Score>{score_of, how}}; }
  [[nodiscard]] detail::copy_birth_score entry_scores(auto const& in) const {
    return {in.template get<frozen_score>().score};
  }
  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::map(exec, out, entry_scores(in));
    if constexpr (lane_numbers > 0) {
      by_lane<float const> const kept = in.template get<frozen_score>().numbers;
      float* const rest = out.spare + std::int64_t{lane_numbers} * out.lanes.size();
      by_lane<float> const counts = contiguous_scores(out.lanes, granularity::lane, rest, 1).rows;
      by_lane<int> const of_lane{reinterpret_cast<int*>(counts.data), counts.sequence, counts.layer, counts.head};
      detail::copy_lane_numbers const copy{kept, numbers_of_lanes(out, lane_numbers), lane_numbers};
      ops::map_lanes(exec, out.lanes, copy, of_lane);
    }
  }

  friend bool operator==(frozen const&, frozen const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
