// SPDX-License-Identifier: Apache-2.0
// Finds lanes that a decision knows nothing about: nothing was observed by the signals that its scorer reads.
#pragma once

#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A signal with a member `observed(lanes, lane)`, callable in kernels, that returns whether the signal has data about
/// a lane. Query rows and recorded signals have it. Keys, values and external scores do not.
template <class Signal>
concept reports_observed = requires(Signal const& signal, lanes const& batch, lane this_lane) {
  { signal.observed(batch, this_lane) } -> std::same_as<bool>;
};

/// One such signal of a decision. `is_checked` is false for a recorded signal that the engine gives itself: it always
/// counts as observed, because nothing says how it was computed.
template <class Signal>
struct observed_signal {
  Signal from;
  bool is_checked;
  [[nodiscard]] KVPOLICY_HD bool observed_in(lanes const& batch, lane this_lane) const {
    return !is_checked || from.observed(batch, this_lane);
  }
};

/// All such signals of a decision.
template <class... Signals>
struct observed_signals : observed_signal<Signals>... {
  lanes batch{};
  static constexpr bool can_tell = sizeof...(Signals) > 0;
  /// True if every one of these signals has data about the lane.
  [[nodiscard]] KVPOLICY_HD bool observed(lane this_lane) const {
    return (observed_signal<Signals>::observed_in(batch, this_lane) && ...);
  }
};

/// The signals of a list that have the member `observed`, each once.
template <class Kept, class... Left>
struct signals_with_observed;
template <class... Kept>
struct signals_with_observed<needs<Kept...>> {
  using type = needs<Kept...>;
};
template <class... Kept, class Next, class... Left>
struct signals_with_observed<needs<Kept...>, Next, Left...>
    : std::conditional_t<reports_observed<Next> && !(std::same_as<Next, Kept> || ...),
                         signals_with_observed<needs<Kept..., Next>, Left...>,
                         signals_with_observed<needs<Kept...>, Left...>> {};

template <class Needed, class Recorders>
struct signals_read_by;
template <class... Needed, class... Recorders>
struct signals_read_by<needs<Needed...>, std::tuple<Recorders...>>
    : signals_with_observed<needs<>, Needed..., typename Recorders::provides...> {};

/// The recorders that a scorer itself reads, without those of other parts of a cache policy.
template <class Score>
constexpr auto own_recorders_of(Score const& score) {
  if constexpr (requires { score.own_recorders(); }) {
    return score.own_recorders();
  } else {
    return recorders_of(score);
  }
}

template <class Score>
inline constexpr bool rows_see_every_entry = [] {
  if constexpr (requires { Score::rows_see_every_entry; }) {
    return Score::rows_see_every_entry;
  } else {
    return false;
  }
}();

template <class Score, class Signal, class SignalSet>
constexpr observed_signal<Signal> observed_signal_of(SignalSet const& in) {
  constexpr bool is_query_view = std::is_base_of_v<query_view, Signal>;
  observed_signal<Signal> made{in.template get<Signal>(), is_query_view || !in.template gives<Signal>()};
  if constexpr (is_query_view && rows_see_every_entry<Score>) made.from.position = {};
  return made;
}

/// The signals by which a scorer's decisions find unobserved lanes: those that it needs, and those of its recorders.
template <class Score, class SignalSet>
constexpr auto observed_of(Score const& score, SignalSet const& in) {
  using list = typename signals_read_by<typename Score::needs, decltype(own_recorders_of(score))>::type;
  return []<class... Signals>(needs<Signals...>, SignalSet const& all) {
    return observed_signals<Signals...>{observed_signal_of<Score, Signals>(all)..., all.lanes};
  }(list{}, in);
}

/// True if the rule knows that nothing was observed in any lane of the `many` segments from `first` on. A decision
/// about them has no basis.
template <class Rule>
[[nodiscard]] KVPOLICY_HD bool decides_unobserved([[maybe_unused]] Rule const& rule,
                                                  [[maybe_unused]] score_view const& scores, [[maybe_unused]] int first,
                                                  [[maybe_unused]] int many = 1) {
  if constexpr (requires(lane this_lane) { rule.unobserved(this_lane); }) {
    int const begin = first_lane(scores.lanes, scores.decides, first);
    int const end = begin + scores.lanes.size() / scores.segments() * many;
    for (int i = begin; i < end; ++i) {
      if (!rule.unobserved(scores.lanes.at(i))) return false;
    }
    return true;
  } else {
    return false;
  }
}

/// The same of one segment, whose first lane is `this_lane`.
template <class Rule>
[[nodiscard]] KVPOLICY_HD bool decides_unobserved([[maybe_unused]] Rule const& rule, score_view const& scores,
                                                  int segment, [[maybe_unused]] lane this_lane) {
  if (scores.decides != granularity::lane) return decides_unobserved(rule, scores, segment);
  if constexpr (requires { rule.unobserved(this_lane); }) {
    return rule.unobserved(this_lane);
  } else {
    return false;
  }
}

/// True if a segment of which the rule keeps nothing is counted.
template <class Rule>
[[nodiscard]] KVPOLICY_HD bool counts_emptied([[maybe_unused]] Rule const& rule) {
  if constexpr (requires { rule.may_empty; }) {
    return rule.may_empty;
  } else {
    return false;
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
