// SPDX-License-Identifier: Apache-2.0
// Signals that are found by name at run time, for type-erased policies.
#pragma once

#include <array>
#include <kvpolicy/core/signal_set.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <string>
#include <string_view>

namespace KVPOLICY_NAMESPACE {

/// A view of an engine's signals, which finds each by its name. It refers to the `signals` that it was made from, which
/// must outlive it.
class any_signals {
 public:
  static constexpr std::size_t most = 16;

  template <class... Given>
  any_signals(signals<Given...> const& from) : lanes(from.lanes) {
    static_assert(sizeof...(Given) <= most, "kvpolicy: an erased policy takes at most 16 signals");
    (add(from.template get<Given>()), ...);
  }

  /// Starts without signals. Each signal that is added must outlive this view.
  explicit any_signals(kvpolicy::lanes const& among) : lanes(among) {}

  template <class Signal>
  void add(Signal const& signal) {
    expects(count_ < most, "any_signals", "signals", count_ + 1, "an erased policy takes at most 16 signals");
    given_[count_++] = {Signal::name, &signal,
                        [](void const* at, char const* call, shape const& model, kvpolicy::lanes const& batch) {
                          detail::check_signal(*static_cast<Signal const*>(at), call, model, batch);
                        }};
  }

  kvpolicy::lanes lanes;

  /// The same signals about other lanes.
  [[nodiscard]] any_signals with(kvpolicy::lanes const& batch) const {
    any_signals made = *this;
    made.lanes = batch;
    return made;
  }
  /// Replaces a signal that is given. The new one must outlive this view.
  template <class Signal>
  void replace(Signal const& signal) {
    for (std::size_t i = 0; i < count_; ++i) {
      if (given_[i].name == std::string_view(Signal::name)) given_[i].value = &signal;
    }
  }

  /// The signal, or null if it is not given.
  template <class Signal>
  [[nodiscard]] Signal const* find() const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (given_[i].name == std::string_view(Signal::name)) return static_cast<Signal const*>(given_[i].value);
    }
    return nullptr;
  }

  template <class Signal>
  [[nodiscard]] Signal const& get() const {
    Signal const* const found = find<Signal>();
    expects(
        found != nullptr, "signals", "signals", [&] { return names(); },
        [] { return std::string("signal ") + Signal::name + " is read"; });
    return *found;
  }

  /// Always true: the signals that are given are only known in a call, so a missing one cannot be a compile error.
  template <class Signal>
  static constexpr bool provides = true;

  template <class... Needed>
  [[nodiscard]] bool has_all(needs<Needed...>) const {
    return (has(static_cast<Needed const*>(nullptr)) && ...);
  }
  template <class Signal>
  [[nodiscard]] bool has(Signal const*) const {
    return find<Signal>() != nullptr;
  }
  template <class... Signals>
  [[nodiscard]] bool has(any_signal_of<Signals...> const*) const {
    return (has(static_cast<Signals const*>(nullptr)) || ...);
  }

  /// The names of the signals, as in "keys, queries".
  [[nodiscard]] std::string names() const {
    std::string text;
    for (std::size_t i = 0; i < count_; ++i) text += (i == 0 ? "" : ", ") + std::string(given_[i].name);
    return text.empty() ? "none" : text;
  }

  void check(char const* call, shape const& model) const {
    for (std::size_t i = 0; i < count_; ++i) given_[i].check(given_[i].value, call, model, lanes);
  }

 private:
  struct one {
    std::string_view name;
    void const* value;
    void (*check)(void const*, char const*, shape const&, kvpolicy::lanes const&);
  };

  std::array<one, most> given_{};
  std::size_t count_ = 0;
};

/// The signals that a scorer reads. A signal that the engine gives comes first; any other is read from the recorded
/// columns.
template <class Recorders, class State>
class signal_set<any_signals, Recorders, State> {
 public:
  signal_set(any_signals const& given, Recorders const& recorders, State const& state, std::size_t first = 0)
      : signal_set(given, recorders, state, first, given.lanes) {}
  /// The same about other lanes.
  signal_set(any_signals const& given, Recorders const& recorders, State const& state, std::size_t first,
             kvpolicy::lanes const& among)
      : lanes(among), given_(given), recorders_(recorders), state_(state), first_(first) {}

  kvpolicy::lanes lanes;
  by_lane<int const> allowed{};

  template <class Signal>
  static constexpr bool recorded = signal_set<signals<>, Recorders, State>::template provides<Signal>;

  template <class Signal>
  static constexpr bool provides = true;

  /// True if the engine gives the signal itself.
  template <class Signal>
  [[nodiscard]] bool gives() const {
    return given_.find<Signal>() != nullptr;
  }

  [[nodiscard]] any_signals const& given() const { return given_; }
  [[nodiscard]] State const& state() const { return state_; }
  template <class Recorder>
  [[nodiscard]] std::size_t first_column_of(Recorder const& one) const {
    return first_ + detail::first_column_of(recorders_, one, state_.model(), state_.lanes().capacity);
  }

  template <class Signal>
  [[nodiscard]] Signal get() const {
    if (Signal const* const found = given_.find<Signal>(); found != nullptr) return *found;
    if constexpr (recorded<Signal>) {
      return signal_set<signals<>, Recorders, State>(signals<>(lanes), recorders_, state_, first_)
          .template get<Signal>();
    } else {
      return given_.get<Signal>();
    }
  }

 private:
  any_signals const& given_;
  Recorders const& recorders_;
  State const& state_;
  std::size_t first_;
};

}  // namespace KVPOLICY_NAMESPACE
