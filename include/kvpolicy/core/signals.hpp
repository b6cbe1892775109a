// SPDX-License-Identifier: Apache-2.0
// Signals: the inputs that an engine can give to a policy. A scorer names those that it needs.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/check_places.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/contract/hook_checks.hpp>
#include <kvpolicy/core/entry_numbers.hpp>
#include <kvpolicy/core/logit_options.hpp>
#include <kvpolicy/core/query_view.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signal_rows.hpp>
#include <tuple>
#include <type_traits>
#include <utility>

namespace KVPOLICY_NAMESPACE {

/// Rows of a plane that are found through a locator.
struct row_view {
  plane rows{};
  locator where{};
  [[nodiscard]] KVPOLICY_HD std::byte const* row(lane this_lane, int ordinal) const {
    return rows.row(this_lane.layer, where.at(this_lane, ordinal), this_lane.head);
  }
  /// What the elements of an entry's row are multiplied by.
  [[nodiscard]] KVPOLICY_HD float scale(lane this_lane, int ordinal) const {
    return rows.scales.at(this_lane.layer, where.at(this_lane, ordinal), this_lane.head);
  }
};

/// Signal: the post-RoPE keys of every entry, and how logits are made of them.
struct keys : row_view {
  static constexpr auto name = "keys";
  logit_options logits{};  ///< for every verb that computes a softmax of q.k
  void check(char const* call, shape const& model) const {
    expects(rows.base != nullptr || rows.bases.data != nullptr, call, "keys", "null",
            "a signal is the engine's memory");
    detail::check_readable(call, "keys", rows.element);
    detail::check_scales(call, "keys", rows);
    expects(rows.channels == model.head_dim, call, "keys.channels", rows.channels,
            [&] { return "the shape says " + std::to_string(model.head_dim) + " channels"; });
  }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_logits(call, "keys.logits", logits, batch);
    detail::check_places(call, name, where, batch);
  }
};

/// Signal: the values of every entry.
struct values : row_view {
  static constexpr auto name = "values";
  void check(char const* call, shape const&) const {
    expects(rows.base != nullptr || rows.bases.data != nullptr, call, "values", "null",
            "a signal is the engine's memory");
    detail::check_readable(call, "values", rows.element);
    detail::check_scales(call, "values", rows);
  }
  void check_strides(char const* call, lanes const& batch) const { detail::check_places(call, name, where, batch); }
};

/// A cache's keys as a signal.
[[nodiscard]] constexpr keys keys_of(cache const& from) { return {{from.k, from.where}, from.logits}; }
/// A cache's values as a signal. Those of a latent cache are a part of the keys' rows.
[[nodiscard]] constexpr values values_of(cache const& from) { return {{value_plane(from), from.where}}; }

/// Signal: the attention that each entry has received since it was appended, one float for each entry of a lane.
struct attention_mass {
  static constexpr auto name = "attention_mass";
  by_lane<float const> mass{};
  /// True if any entry of a lane has received attention.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& batch, lane this_lane) const {
    return detail::any_recorded(mass.row(this_lane), batch.committed(this_lane));
  }
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, mass); }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_lane_strides(call, name, mass, batch);
  }
};

/// The signals that a scorer or a recorder reads.
template <class... Signals>
struct needs {};

/// A need that any one of several signals satisfies.
template <class... Signals>
struct any_signal_of {
  static constexpr auto name = "any_of";
  using options = needs<Signals...>;
};

namespace detail {

template <class SignalSet, class Signal>
struct provided;

/// The hooks of a signal.
template <class Signal>
using signal_hooks = hooks<
    Signal,
    optional_hook<hook::signal_check, form_of_call<hook::signal_check, Signal, anything, char const*, shape const&>()>,
    optional_hook<hook::signal_check_strides,
                  form_of_call<hook::signal_check_strides, Signal, anything, char const*, lanes const&>()>,
    optional_hook<hook::signal_check_rows,
                  form_of_call<hook::signal_check_rows, Signal, anything, char const*, lanes const&>()>>;

/// Makes the checks of one signal that read no memory.
template <class Signal>
void check_signal(Signal const& one, char const* call, shape const& model, lanes const& batch) {
  if constexpr (requires { one.check(call, model); }) one.check(call, model);
  if constexpr (requires { one.check_strides(call, batch); }) one.check_strides(call, batch);
}

}  // namespace detail

/// The signals that an engine gives to a call, and the lanes that they are about.
///
///     kv::signals in{cache.lanes, kv::keys_of(cache), my_queries};
template <class... Given>
class signals {
 public:
  explicit constexpr signals(kvpolicy::lanes const& batch, Given... given) : lanes(batch), given_(given...) {}
  static_assert((detail::signal_hooks<Given>::check() && ...));

  kvpolicy::lanes lanes;

  template <class Signal>
  [[nodiscard]] constexpr Signal const& get() const {
    static_assert(detail::signal_read<Signal, signals>::is_provided,
                  "kvpolicy: this recorder reads a signal that its `needs` does not list, and that is not given");
    if constexpr (provides<Signal>) {
      return std::get<Signal>(given_);
    } else {
      return detail::refused<Signal const&>();
    }
  }

  template <class Signal>
  static constexpr bool provides = (std::is_same_v<Signal, Given> || ...);

  /// True if every one of these signals is given. Here it is known at compile time; `any_signals`, whose signals are
  /// known only at run time, has a member of the same form.
  template <class... Needed>
  [[nodiscard]] static constexpr bool has_all(needs<Needed...>) {
    return (detail::provided<signals, Needed>::value && ...);
  }

  /// Replaces a signal that is given.
  template <class Signal>
  constexpr void replace(Signal const& signal) {
    std::get<Signal>(given_) = signal;
  }

  /// These signals and `more`, about other lanes.
  template <class... More>
  [[nodiscard]] constexpr signals<Given..., More...> with(kvpolicy::lanes const& batch, More const&... more) const {
    return std::apply([&](Given const&... each) { return signals<Given..., More...>(batch, each..., more...); },
                      given_);
  }

  /// The signal, or null if it is not given. Here it is known at compile time, as `provides` says.
  template <class Signal>
  [[nodiscard]] constexpr Signal const* find() const {
    if constexpr (provides<Signal>) {
      return &std::get<Signal>(given_);
    } else {
      return nullptr;
    }
  }

  /// Throws if a signal does not fit the model or the lanes: calls the `check` and the `check_strides` of every signal
  /// that has them.
  void check(char const* call, shape const& model) const {
    std::apply([&](auto const&... each) { (detail::check_signal(each, call, model, lanes), ...); }, given_);
  }

 private:
  std::tuple<Given...> given_;
};

namespace detail {

template <class SignalSet, class Signal>
struct provided : std::bool_constant<SignalSet::template provides<Signal>> {};
template <class SignalSet, class... Signals>
struct provided<SignalSet, any_signal_of<Signals...>>
    : std::bool_constant<(provided<SignalSet, Signals>::value || ...)> {};

}  // namespace detail

/// True if `SignalSet` provides the signal.
template <class SignalSet, class Signal>
inline constexpr bool provides = detail::provided<SignalSet, Signal>::value;

/// The compiler names this struct in the error that a user reads when a composition lacks a signal.
template <class Reader, class Signal, class SignalSet>
struct signal_needed_by {
  static constexpr bool is_provided = provides<SignalSet, Signal>;
};

namespace detail {

/// The name of a needed signal: "keys", or "queries or attention_probabilities".
template <class Signal>
std::string signal_name(Signal const*) {
  return Signal::name;
}
template <class First, class... Others>
std::string signal_name(any_signal_of<First, Others...> const*) {
  std::string text = First::name;
  ((text += std::string(" or ") + Others::name), ...);
  return text;
}

/// The name of the tensor of a trace from which a needed signal is made, likewise.
template <class Signal>
std::string tensor_name(Signal const*) {
  if constexpr (requires { Signal::tensor; }) {
    return Signal::tensor;
  } else {
    return Signal::name;
  }
}
template <class First, class... Others>
std::string tensor_name(any_signal_of<First, Others...> const*) {
  std::string text = tensor_name(static_cast<First const*>(nullptr));
  ((text += " or " + tensor_name(static_cast<Others const*>(nullptr))), ...);
  return text;
}

template <class SignalSet, class... Needed>
consteval bool has_all(needs<Needed...>) {
  return (provides<SignalSet, Needed> && ...);
}

template <class Signal, class SignalSet>
void check_rows_of(Signal const*, [[maybe_unused]] char const* call, [[maybe_unused]] SignalSet const& in) {
  if constexpr (requires(Signal const& one) { one.check_rows(call, in.lanes); }) {
    if (Signal const* const given = in.template find<Signal>(); given != nullptr) given->check_rows(call, in.lanes);
  }
}
template <class... Signals, class SignalSet>
void check_rows_of(any_signal_of<Signals...> const*, char const* call, SignalSet const& in) {
  (check_rows_of(static_cast<Signals const*>(nullptr), call, in), ...);
}

/// Calls `check_rows` of the needed signals that are given. The caller ensures that the host can read their memory.
template <class... Needed, class SignalSet>
void check_rows(needs<Needed...>, [[maybe_unused]] char const* call, [[maybe_unused]] SignalSet const& in) {
  (check_rows_of(static_cast<Needed const*>(nullptr), call, in), ...);
}

/// Gives one readable error for each missing signal, with g++, clang and nvcc alike.
template <class Reader, class SignalSet, class... Needed>
consteval bool signals_complete(needs<Needed...>) {
  (
      [] {
        static_assert(
            signal_needed_by<Reader, Needed, SignalSet>::is_provided,
            "kvpolicy: this scorer or recorder needs a signal that the given kvpolicy::signals do not provide");
      }(),
      ...);
  return (provides<SignalSet, Needed> && ...);
}

/// Visits the signals of a list.
template <class T>
struct each_need;
template <class... Needed>
struct each_need<needs<Needed...>> {
  /// Calls visitor(pointer) with a null pointer of the type of each signal.
  template <class Visitor>
  static void visit(Visitor const& visitor) {
    (visitor(static_cast<Needed const*>(nullptr)), ...);
  }
};

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
