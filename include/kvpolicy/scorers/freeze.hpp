// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps the scores that a scorer gives when it observes, so that later decisions need not give its signals.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <kvpolicy/core/recorder.hpp>
#include <kvpolicy/core/signal_set.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/map_lanes.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/recorders/record_birth_score.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>
#include <tuple>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

/// Signal: a score that each entry had when a scorer ran in `observe`. It is 0 for an entry that was not there then.
struct frozen_score : carried_score {
  static constexpr auto name = "frozen_score";
  by_lane<float const> numbers{};  ///< of each lane, which that scorer left for an allotter; null: none
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

[[nodiscard]] constexpr by_lane<float const> read_only(by_lane<float> const& of) {
  return {of.data, of.sequence, of.layer, of.head, of.slots};
}

/// Copies the numbers of each lane.
struct copy_lane_numbers {
  by_lane<float const> from;
  by_lane<float> to;
  int count;
  KVPOLICY_HD int operator()(lane_entries const& of) const {
    for (int i = 0; i < count; ++i) to.row(of.lane)[i] = from.row(of.lane)[i];
    return of.count;
  }
};

/// Several lists of signals as one: each signal once, and none of `Without`.
template <class Kept, class Without, class... Lists>
struct merged_needs {
  using type = Kept;
};
template <class... Kept, class... Without, class... Lists>
struct merged_needs<needs<Kept...>, needs<Without...>, needs<>, Lists...>
    : merged_needs<needs<Kept...>, needs<Without...>, Lists...> {};
template <class... Kept, class... Without, class Next, class... Left, class... Lists>
struct merged_needs<needs<Kept...>, needs<Without...>, needs<Next, Left...>, Lists...>
    : merged_needs<std::conditional_t<(std::same_as<Next, Kept> || ...) || (std::same_as<Next, Without> || ...),
                                      needs<Kept...>, needs<Kept..., Next>>,
                   needs<Without...>, needs<Left...>, Lists...> {};

/// What a scorer and its recorders read of the engine, and which verbs they run.
template <class Score, class Recorders>
struct read_to_freeze;
template <class Score, class... Recorders>
struct read_to_freeze<Score, std::tuple<Recorders...>> {
  using needs = typename merged_needs<kvpolicy::needs<>, kvpolicy::needs<typename Recorders::provides...>,
                                      typename Recorders::needs..., typename Score::needs>::type;
  template <class... Verbs>
  static constexpr verbs<Verbs...> one_list(verbs<Verbs...>) {
    return {};
  }
  template <class A, class B, class... Lists>
  static constexpr auto one_list(A first, B second, Lists... rest) {
    return one_list(joined(first, second), rest...);
  }
  using verbs = decltype(one_list(verbs_of<Score>(), verbs_of<Recorders>()...));
};

/// The columns of recorders inside another one, as the state that a set of signals asks.
struct inner_state {
  recorded_columns recorded;
  kvpolicy::lanes batch;
  [[nodiscard]] shape const& model() const { return recorded.model; }
  [[nodiscard]] kvpolicy::lanes const& lanes() const { return batch; }
  [[nodiscard]] recorded_columns columns_from(std::size_t first, kvpolicy::lanes const&) const {
    return {recorded.model, recorded.first + first, recorded.slots};
  }
};

/// A list of at most twelve columns.
struct frozen_columns {
  std::array<column, 12> all{};
  std::size_t count = 0;
  [[nodiscard]] constexpr std::size_t size() const { return count; }
  [[nodiscard]] constexpr column const* begin() const { return all.data(); }
  [[nodiscard]] constexpr column const* end() const { return all.data() + count; }
  constexpr void add(column const& one) { all[count++] = one; }
};

}  // namespace detail

/// Runs a scorer in `observe` and keeps its scores, in float32. A score moves with its entry, and decisions read it
/// without the signals of that `observe`: rows of queries that exist once (KVzip, LookaheadKV), or a layer's attention
/// while its prompt is read (CAKE).
///
///     score of an entry = the scorer's, joined with the earlier one as `how` says
///
/// The scorer decides lane by lane. It runs whenever what it and its recorders read is given.
///
/// - memory: four bytes an entry; eight unless a new score replaces the old one. The columns of the scorer's recorders,
///   its spare rows and the numbers of lanes that it leaves for an allotter come to that.
/// - cost: that of the scorer and its recorders, and one pass over the scores.
template <class Score>
struct freeze {
  Score score_of{};
  freezing how = freezing::replace;

  using recorders_inside = decltype(recorders_of(std::declval<Score const&>()));
  using needs = typename detail::read_to_freeze<Score, recorders_inside>::needs;
  using verbs = typename detail::read_to_freeze<Score, recorders_inside>::verbs;
  using provides = frozen_score;
  static constexpr int lane_numbers = [] {
    if constexpr (requires { Score::lane_numbers; }) return int{Score::lane_numbers};
    return 0;
  }();

  /// The columns: numbers of lanes if there are some, the scores, the newest ones unless they replace the old ones,
  /// spare rows if there are some, and those of the recorders inside.
  [[nodiscard]] detail::frozen_columns columns(shape const& model, int bound) const {
    detail::frozen_columns made;
    constexpr int size = sizeof(float);
    if (lane_numbers > 0) made.add({"lane_numbers", column_extent::lane, on_move::stay, size * (lane_numbers + 1), 1});
    made.add({"frozen_score", column_extent::lane_entry, on_move::permute, size});
    if (how != freezing::replace) made.add({"newest_score", column_extent::lane_entry, on_move::permute, size});
    int const spare = spare_of_lane(model, bound);
    if (spare > 0) made.add({"spare_rows", column_extent::lane, on_move::stay, size * spare * bound, 1});
    auto const add = [&](auto const& keeps) {
      for (column const& each : keeps.columns(model, bound)) made.add(each);
    };
    std::apply([&](auto const&... each) { (add(each), ...); }, recorders_of(score_of));
    return made;
  }
  [[nodiscard]] static frozen_score view(recorded_columns const& recorded) {
    frozen_score made{{recorded.template table<float const>(first_score)}};
    if constexpr (lane_numbers > 0) made.numbers = detail::read_only(numbers_of(recorded));
    return made;
  }

  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    recorded_columns const inside = recorders_in(recorded, in.lanes);
    auto const all = recorders_of(score_of);
    detail::inner_state const kept_inside{inside, in.lanes};
    signal_set const seen(in, all, kept_inside);
    detail::refuse_data(score_of, exec, seen);
    record_inside(exec, in, inside);
    int const newest = first_score + (how == freezing::replace ? 0 : 1);
    score_view const kept{in.lanes, granularity::lane, recorded.template table<float>(first_score)};
    score_view now{in.lanes, granularity::lane, recorded.template table<float>(newest)};
    if (spare_of_lane(recorded.model, in.lanes.capacity) > 0) {
      by_lane<std::byte> const spare = recorded.first[newest + 1].rows;
      now.spare = reinterpret_cast<float*>(spare.data + in.lanes.layer_begin * spare.layer);
    }
    score_of.score(exec, seen, now);
    ops::map(exec, kept, detail::join_scores{how, recorded.template table<float const>(newest)});
    if constexpr (lane_numbers > 0) {
      by_lane<float> const numbers = numbers_of_lanes(now, lane_numbers);
      detail::copy_lane_numbers const copy{detail::read_only(numbers), numbers_of(recorded), lane_numbers};
      ops::map_lanes(exec, in.lanes, copy, recorded.template table<int>(0));
    }
  }
  void forget(auto& exec, lanes const& batch, recorded_columns const& recorded, int sequence, int position) const {
    each_inside(batch, recorders_in(recorded, batch), [&](auto const& keeps, recorded_columns const& its) {
      if constexpr (requires { keeps.forget(exec, batch, its, sequence, position); }) {
        keeps.forget(exec, batch, its, sequence, position);
      }
    });
  }

  friend bool operator==(freeze const&, freeze const&) = default;

 private:
  static constexpr int first_score = lane_numbers > 0 ? 1 : 0;

  /// The numbers of each lane, behind how many entries were scored.
  [[nodiscard]] static by_lane<float> numbers_of(recorded_columns const& recorded) {
    by_lane<float> made = recorded.template table<float>(0);
    ++made.data;
    return made;
  }
  /// The spare rows of the scorer, for one lane.
  [[nodiscard]] int spare_of_lane(shape const& model, int bound) const {
    return detail::spare_rows(score_of, lanes{.layer_end = 1, .heads = 1, .capacity = bound}, model);
  }
  /// The columns of the recorders inside.
  [[nodiscard]] recorded_columns recorders_in(recorded_columns recorded, lanes const& batch) const {
    std::size_t all = 0;
    std::apply([&](auto const&... each) { ((all += each.columns(recorded.model, batch.capacity).size()), ...); },
               recorders_of(score_of));
    recorded.first += columns(recorded.model, batch.capacity).size() - all;
    return recorded;
  }
  /// Calls visit(recorder, its columns) for each recorder inside.
  template <class Visit>
  void each_inside(lanes const& batch, recorded_columns inside, Visit const& visit) const {
    auto const one = [&](auto const& keeps) {
      visit(keeps, inside);
      inside.first += keeps.columns(inside.model, batch.capacity).size();
    };
    std::apply([&](auto const&... each) { (one(each), ...); }, recorders_of(score_of));
  }
  void record_inside(auto& exec, auto const& in, recorded_columns const& inside) const {
    each_inside(in.lanes, inside,
                [&](auto const& keeps, recorded_columns const& its) { keeps.observe(exec, in, its); });
  }
};

}  // namespace KVPOLICY_NAMESPACE
