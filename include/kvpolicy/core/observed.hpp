// Whether a decision rests on anything: which lanes the signals that its scorer reads say something about.
#pragma once

#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A signal that can tell whether it says anything about a lane: `observed(lanes, lane)`, which a kernel calls. Query
/// rows can, and so can what a recorder has to be shown; keys, values and scores made elsewhere cannot.
template <class Signal>
concept tells_of_lanes = requires(Signal const& signal, lanes const& among, lane this_lane) {
  { signal.observed(among, this_lane) } -> std::same_as<bool>;
};

/// One such signal of a decision. `asked` is false of a recorded signal that the engine gives itself: nothing says how
/// it came about, so it never counts as unobserved.
template <class Signal>
struct observed_signal {
  Signal from;
  bool asked;
  [[nodiscard]] KVPOLICY_HD bool observed_in(lanes const& among, lane this_lane) const {
    return !asked || from.observed(among, this_lane);
  }
};

/// All of them.
template <class... Signals>
struct observed_signals : observed_signal<Signals>... {
  lanes among{};
  static constexpr bool can_tell = sizeof...(Signals) > 0;
  /// True if every one of them says something about the lane.
  [[nodiscard]] KVPOLICY_HD bool observed(lane this_lane) const {
    return (observed_signal<Signals>::observed_in(among, this_lane) && ...);
  }
};

/// Of a list of signals those that can tell, each once.
template <class Kept, class... Left>
struct telling_signals;
template <class... Kept>
struct telling_signals<needs<Kept...>> {
  using type = needs<Kept...>;
};
template <class... Kept, class Next, class... Left>
struct telling_signals<needs<Kept...>, Next, Left...>
    : std::conditional_t<tells_of_lanes<Next> && !(std::same_as<Next, Kept> || ...),
                         telling_signals<needs<Kept..., Next>, Left...>, telling_signals<needs<Kept...>, Left...>> {};

template <class Needed, class Recorders>
struct signals_read_by;
template <class... Needed, class... Recorders>
struct signals_read_by<needs<Needed...>, std::tuple<Recorders...>>
    : telling_signals<needs<>, Needed..., typename Recorders::provides...> {};

/// The recorders that a scorer itself reads, where others run beside them.
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

template <class Score, class Signal, class Bag>
constexpr observed_signal<Signal> observed_signal_of(Bag const& in) {
  constexpr bool is_query_view = std::is_base_of_v<query_view, Signal>;
  observed_signal<Signal> made{in.template get<Signal>(), is_query_view || !in.template gives<Signal>()};
  if constexpr (is_query_view && rows_see_every_entry<Score>) made.from.position = {};
  return made;
}

/// What tells a scorer's decisions which lanes were observed: the signals that it needs, and those of its recorders.
template <class Score, class Bag>
constexpr auto observed_of(Score const& score, Bag const& in) {
  using list = typename signals_read_by<typename Score::needs, decltype(own_recorders_of(score))>::type;
  return []<class... Signals>(needs<Signals...>, Bag const& bag) {
    return observed_signals<Signals...>{observed_signal_of<Score, Signals>(bag)..., bag.lanes};
  }(list{}, in);
}

/// True if a rule can tell that none of the lanes of `many` segments, from `first` on, was observed: what is decided
/// about them rests on nothing.
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

}  // namespace KVPOLICY_NAMESPACE::detail
