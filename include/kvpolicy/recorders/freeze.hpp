// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps the scores that a scorer gives when it observes, so that later decisions need not give its signals.
#pragma once

#include <array>
#include <cstdint>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/recorders/record_birth_score.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

/// Signal: a score that each entry had when a scorer ran in `observe`. It is 0 for an entry that was not there then.
struct frozen_score : carried_score {
  static constexpr auto name = "frozen_score";
};

/// How a later score of an entry joins the one that is kept: it takes its place, is added to it, or counts if it is
/// higher.
enum class freezing { replace, add, highest };

[[nodiscard]] constexpr std::array<char const*, 3> names(freezing) { return {"replace", "add", "highest"}; }

namespace detail {

/// Joins two scores of an entry. An empty element is +0; a score of 0 is stored as -0.
struct join_scores {
  freezing how;
  by_lane<float const> now;

  KVPOLICY_HD float operator()(float old, entry at) const {
    float const score = now.row(at.lane)[at.ordinal];
    bool const empty = same_bits<std::uint32_t>(old) == 0;
    float joined = score;
    if (!empty && how == freezing::add) joined = old + score;
    if (!empty && how == freezing::highest && !(score > old)) joined = old;
    return joined == 0 ? -0.0f : joined;
  }
};

/// A scorer without recorders and spare rows.
template <class Score>
concept reads_given_signals = !requires(Score const& score) {
  score.recorders();
} && !requires(Score const& score, lanes const& batch, shape const& of) { score.spare_rows(batch, of); };

}  // namespace detail

/// Runs a scorer in `observe` and keeps its scores, in float32. A score moves with its entry, and decisions read it
/// without the signals of that `observe`: rows of queries that exist once (KVzip, LookaheadKV), or a layer's attention
/// while its prompt is read (CAKE).
///
///     score of an entry = the scorer's, joined with the earlier one as `how` says
///
/// The scorer reads what the engine gives, decides lane by lane, and has no recorders and no spare rows.
///
/// - memory: four bytes an entry; eight unless a new score replaces the old one.
/// - cost: that of the scorer, and one pass over the scores.
template <class Score>
struct freeze {
  Score score_of{};
  freezing how = freezing::replace;

  static_assert(detail::reads_given_signals<Score>,
                "kvpolicy: a scorer that is frozen reads given signals: it has no recorders and no spare rows");

  using needs = typename Score::needs;
  using verbs = decltype(detail::verbs_of<Score>());
  using provides = frozen_score;
  /// The columns: one, and a second one unless a new score replaces the old one.
  struct column_list {
    std::array<column, 2> all;
    std::size_t count;
    [[nodiscard]] constexpr std::size_t size() const { return count; }
    [[nodiscard]] constexpr column const* begin() const { return all.data(); }
    [[nodiscard]] constexpr column const* end() const { return all.data() + count; }
  };
  [[nodiscard]] column_list columns(shape const&, int) const {
    column const kept{"frozen_score", column_extent::lane_entry, on_move::permute, sizeof(float)};
    column const now{"newest_score", column_extent::lane_entry, on_move::permute, sizeof(float)};
    return {{kept, now}, how == freezing::replace ? 1u : 2u};
  }
  [[nodiscard]] static frozen_score view(recorded_columns const& recorded) {
    return {{recorded.template table<float const>(0)}};
  }

  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    int const newest = how == freezing::replace ? 0 : 1;
    score_view const now{in.lanes, granularity::lane, recorded.template table<float>(newest)};
    score_view const kept{in.lanes, granularity::lane, recorded.template table<float>(0)};
    score_of.score(exec, in, now);
    ops::map(exec, kept, detail::join_scores{how, recorded.template table<float const>(newest)});
  }

  friend bool operator==(freeze const&, freeze const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
