// What every decision does with the recorders of its scorer: state is made of them, and they are shown signals.
#pragma once

#include <kvpolicy/core/check.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <kvpolicy/recorders/hooks.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Bytes of scratch that a verb needs, if the backend has it: of a worker, or of a device for all lanes.
template <class Verb, class Backend>
std::size_t scratch_of_verb(shape const& model, lanes const& who) {
  using backends = implementation<Verb, Backend>;
  if constexpr (requires { backends::scratch(model, who); }) {
    return backends::scratch(model, who);
  } else if constexpr (requires { backends::scratch(model, who.bound); }) {
    return backends::scratch(model, who.bound);
  } else {
    static_cast<void>(model), static_cast<void>(who);
    return 0;
  }
}

/// A part of a policy looks at itself, where it has something to refuse.
template <class Part>
void check_part(char const* call, Part const& part) {
  if constexpr (requires { part.check(call); }) part.check(call);
}
template <class Part>
void check_part(char const* call, Part const& part, shape const& model) {
  if constexpr (requires { part.check(call, model); }) {
    part.check(call, model);
  } else {
    check_part(call, part);
  }
}

/// The state of a batch: the columns of these recorders, in their order. `slack`: see state.
template <executor Executor, class... Recorders>
state<Executor> state_of(Executor& exec, std::tuple<Recorders...> const& recorders, cache const& in, int slack = 0) {
  state<Executor> made(exec, in.shape, in.who, slack);
  std::apply([&](auto const&... each) { (made.add(each), ...); }, recorders);
  return made;
}

/// Shows the signals to every recorder that they have something for.
template <executor Executor, class... Recorders, class Given>
void record(Executor& exec, std::tuple<Recorders...> const& recorders, Given const& in, state<Executor> const& held) {
  std::size_t first = 0;
  auto const one = [&](auto const& recorder) {
    using type = std::remove_cvref_t<decltype(recorder)>;
    using needed = typename type::needs;
    if constexpr (signals_complete<type, Given>(needed{})) {
      if (in.has_all(needed{})) recorder.observe(exec, in, held.columns_from(first));
      first += recorder.columns(held.model(), held.who().bound).size();
    }
  };
  if constexpr ((fits<observing_hooks<Recorders, Executor, Given>>() && ...)) {
    std::apply([&](auto const&... each) { (one(each), ...); }, recorders);
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
