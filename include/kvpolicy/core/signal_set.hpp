// SPDX-License-Identifier: Apache-2.0
// The signals that a scorer reads: those that the engine gives, and those that recorders keep.
#pragma once

#include <concepts>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <tuple>
#include <utility>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The index in the state of the first column of recorder `At` of the tuple.
template <std::size_t At, class... Recorders>
std::size_t first_column(std::tuple<Recorders...> const& all, shape const& model, int bound) {
  std::size_t first = 0;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((first += std::get<I>(all).columns(model, bound).size()), ...);
  }(std::make_index_sequence<At>{});
  return first;
}

/// The index in the state of the first column of the recorder that equals `one`.
template <class Recorder, class... Recorders>
std::size_t first_column_of(std::tuple<Recorders...> const& all, Recorder const& one, shape const& model, int bound) {
  std::size_t first = 0;
  bool found = false;
  auto const look = [&]<class Next>(Next const& next) {
    if constexpr (std::same_as<Next, Recorder>) found = found || next == one;
    if (!found) first += next.columns(model, bound).size();
  };
  std::apply([&](auto const&... each) { (look(each), ...); }, all);
  return first;
}

}  // namespace detail

/// The signals that a scorer reads. A signal that the engine gives comes before one that a recorder keeps.
template <class Given, class Recorders, class State>
class signal_set {
 public:
  /// `first` is the index in the state of the first column of these recorders.
  signal_set(Given const& given, Recorders const& recorders, State const& state, std::size_t first = 0)
      : lanes(given.lanes), given_(given), recorders_(recorders), state_(state), first_(first) {}

  kvpolicy::lanes lanes;
  by_lane<int const> allowed{};  ///< how many entries each lane may keep, for a scorer that reads it; null: not known

  template <class Signal>
  [[nodiscard]] Signal get() const {
    if constexpr (Given::template provides<Signal>) {
      return given_.template get<Signal>();
    } else if constexpr (!provides<Signal>) {
      static_assert(detail::signal_read<Signal, signal_set>::is_provided,
                    "kvpolicy: this scorer reads a signal that its `needs` does not list, and that is neither given "
                    "nor recorded");
      return detail::refused<Signal>();
    } else {
      constexpr std::size_t at = recorded_at<Signal>();
      std::size_t const first = first_ + detail::first_column<at>(recorders_, state_.model(), state_.lanes().capacity);
      return std::get<at>(recorders_).view(state_.columns_from(first, lanes));
    }
  }

  /// The index of the recorder that provides the signal; the number of recorders if none does.
  template <class Signal>
  static constexpr std::size_t recorded_at() {
    std::size_t at = std::tuple_size_v<Recorders>;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((std::same_as<typename std::tuple_element_t<I, Recorders>::provides, Signal> ? void(at = I) : void()), ...);
    }(std::make_index_sequence<std::tuple_size_v<Recorders>>{});
    return at;
  }

  /// True if the engine gives the signal itself.
  template <class Signal>
  [[nodiscard]] static constexpr bool gives() {
    return Given::template provides<Signal>;
  }

  /// What the set is made of, for an erased scorer, which makes a set of its own.
  [[nodiscard]] Given const& given() const { return given_; }
  [[nodiscard]] State const& state() const { return state_; }
  /// The index in the state of the first column of one of the recorders.
  template <class Recorder>
  [[nodiscard]] std::size_t first_column_of(Recorder const& one) const {
    return first_ + detail::first_column_of(recorders_, one, state_.model(), state_.lanes().capacity);
  }

  template <class Signal>
  static constexpr bool provides =
      Given::template provides<Signal> || recorded_at<Signal>() < std::tuple_size_v<Recorders>;

 private:
  Given const& given_;
  Recorders const& recorders_;
  State const& state_;
  std::size_t first_;
};

namespace detail {

/// The signals that a policy's scorer reads.
template <class Policy, class Given, class Executor>
using signal_set_of =
    signal_set<Given, std::remove_cvref_t<decltype(recorders_of(std::declval<Policy const&>().score))>,
               state<Executor>>;

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
